//! kubectl's JSONPath templates: `{.status.phase}`, `{range .items[*]}{.metadata.name}{"\n"}{end}`, filters.
//!
//! Parses a template once and evaluates it on a value. A missing field is an empty result, never an error.
//! Regular expressions and functions are not known here, nor to kubectl.
use serde_json::Value;

/// Why a template could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the jsonpath {template:?} cannot be read at character {at}: {message}")]
pub struct PathError {
    template: String,
    at: usize,
    message: String,
}

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    Path(Vec<Step>),
    Range(Vec<Step>, Vec<Piece>),
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Root,
    Field(String),
    All,
    Descend,
    Slice(Option<i64>, Option<i64>),
    Index(i64),
    Union(Vec<Step>),
    Filter(Filter),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Operand,
    test: Option<(Test, Operand)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(Vec<Step>),
    Value(Value),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Test {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Template {
    /// Reads a template; one without braces is taken for a single path.
    pub fn parse(template: &str) -> Result<Self, PathError> {
        let whole = if template.contains('{') {
            template.to_owned()
        } else {
            let path = template.trim();
            let dot = if path.starts_with(['.', '$', '[', '@']) { "" } else { "." };
            format!("{{{dot}{path}}}")
        };
        let mut reader = Reader { chars: whole.chars().collect(), at: 0 };
        let pieces = reader.pieces(false).map_err(|message| PathError {
            template: template.to_owned(),
            at: reader.at + 1,
            message,
        })?;
        Ok(Self(pieces))
    }

    /// The text that the template makes of a value; several results of one path are separated by a space.
    pub fn render(&self, root: &Value) -> String {
        let mut text = String::new();
        render(&self.0, root, root, &mut text);
        text
    }

    /// Every value that the template's paths find.
    pub fn find<'a>(&'a self, root: &'a Value) -> Vec<&'a Value> {
        let paths = self.0.iter().filter_map(|piece| match piece {
            Piece::Path(steps) => Some(steps),
            Piece::Text(_) | Piece::Range(..) => None,
        });
        paths.flat_map(|steps| walk(steps, root, root)).collect()
    }
}

/// A found value as text: strings as they are, everything else as JSON.
pub fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn render(pieces: &[Piece], root: &Value, here: &Value, text: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Text(literal) => text.push_str(literal),
            Piece::Path(steps) => {
                let found: Vec<String> = walk(steps, root, here).into_iter().map(as_text).collect();
                text.push_str(&found.join(" "));
            }
            Piece::Range(steps, inner) => {
                for item in walk(steps, root, here) {
                    render(inner, root, item, text);
                }
            }
        }
    }
}

fn walk<'a>(steps: &[Step], root: &'a Value, here: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![here];
    for step in steps {
        found = found.into_iter().flat_map(|value| advance(step, root, value)).collect();
    }
    found
}

fn advance<'a>(step: &Step, root: &'a Value, value: &'a Value) -> Vec<&'a Value> {
    match step {
        Step::Root => vec![root],
        Step::Field(name) => value.get(name.as_str()).into_iter().collect(),
        Step::All => children(value).collect(),
        Step::Descend => {
            let mut all = vec![value];
            let mut next = 0;
            while let Some(value) = all.get(next).copied() {
                all.extend(children(value));
                next += 1;
            }
            all
        }
        Step::Index(index) => {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            position(*index, list.len()).and_then(|at| list.get(at)).into_iter().collect()
        }
        Step::Slice(from, to) => {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let bound = |at: &Option<i64>, default| at.map_or(default, |at| clamp(at, list.len()));
            let (from, to) = (bound(from, 0), bound(to, list.len()));
            list.get(from..to).into_iter().flatten().collect()
        }
        Step::Union(steps) => steps.iter().flat_map(|step| advance(step, root, value)).collect(),
        Step::Filter(filter) => children(value).filter(|item| filter.holds(root, item)).collect(),
    }
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

fn position(index: i64, length: usize) -> Option<usize> {
    let from_end = || length.checked_sub(usize::try_from(index.unsigned_abs()).ok()?);
    if index < 0 { from_end() } else { usize::try_from(index).ok() }
}

fn clamp(index: i64, length: usize) -> usize {
    position(index, length).unwrap_or(0).min(length)
}

impl Filter {
    fn holds(&self, root: &Value, item: &Value) -> bool {
        let left = self.left.values(root, item);
        let Some((test, right)) = &self.test else { return !left.is_empty() };
        let right = right.values(root, item);
        left.iter().any(|a| right.iter().any(|b| test.holds(a, b)))
    }
}

impl Operand {
    fn values<'a>(&'a self, root: &'a Value, item: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Path(steps) => walk(steps, root, item),
            Self::Value(value) => vec![value],
        }
    }
}

impl Test {
    fn holds(self, a: &Value, b: &Value) -> bool {
        let order = match (a, b) {
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (Value::Number(a), Value::Number(b)) => {
                a.as_f64().and_then(|a| b.as_f64().and_then(|b| a.partial_cmp(&b)))
            }
            _ => None,
        };
        match self {
            Self::Equal => order.map_or(a == b, std::cmp::Ordering::is_eq),
            Self::NotEqual => order.map_or(a != b, std::cmp::Ordering::is_ne),
            Self::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Self::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Self::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Self::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

/// Reads a template from left to right. Errors are sentences; the position is where the reader stands.
struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, wanted: &str) -> bool {
        let matches = wanted.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        self.at += if matches { wanted.chars().count() } else { 0 };
        matches
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        if self.take(wanted) { Ok(()) } else { Err(format!("{wanted:?} is missing")) }
    }

    fn blanks(&mut self) {
        while self.peek() == Some(' ') {
            self.at += 1;
        }
    }

    fn until(&mut self, stop: impl Fn(char) -> bool) -> String {
        let from = self.at;
        while self.peek().is_some_and(|c| !stop(c)) {
            self.at += 1;
        }
        self.chars[from..self.at].iter().collect()
    }

    fn pieces(&mut self, in_range: bool) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        loop {
            let text = self.until(|c| c == '{');
            if !text.is_empty() {
                pieces.push(Piece::Text(text));
            }
            if !self.take("{") {
                return if in_range { Err("{end} is missing".to_owned()) } else { Ok(pieces) };
            }
            self.blanks();
            if self.take("end") {
                self.blanks();
                self.expect("}")?;
                return if in_range { Ok(pieces) } else { Err("{end} without {range}".to_owned()) };
            }
            let range = self.take("range ");
            self.blanks();
            let piece = match self.peek() {
                Some('"' | '\'') => Piece::Text(self.quoted()?),
                _ => Piece::Path(self.path(&['}', ' '])?),
            };
            self.blanks();
            self.expect("}")?;
            pieces.push(match (range, piece) {
                (true, Piece::Path(steps)) => Piece::Range(steps, self.pieces(true)?),
                (true, _) => return Err("range needs a path".to_owned()),
                (false, piece) => piece,
            });
        }
    }

    fn quoted(&mut self) -> Result<String, String> {
        let quote = self.peek();
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(c) = self.peek() else { return Err("the closing quote is missing".to_owned()) };
            self.at += 1;
            match c {
                c if Some(c) == quote => return Ok(text),
                '\\' => {
                    let escaped = self.peek().ok_or("nothing follows the backslash")?;
                    self.at += 1;
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        other => other,
                    });
                }
                c => text.push(c),
            }
        }
    }

    fn path(&mut self, ends: &[char]) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        if self.take("$") {
            steps.push(Step::Root);
        } else {
            self.take("@");
        }
        loop {
            match self.peek() {
                Some('.') if self.take("..") => {
                    steps.push(Step::Descend);
                    if self.peek().is_some_and(|c| c != '[') {
                        steps.push(self.field()?);
                    }
                }
                Some('.') => {
                    self.at += 1;
                    // `{.}` is the whole value.
                    if self.peek().is_some_and(|c| c != '[' && !ends.contains(&c)) {
                        steps.push(self.field()?);
                    }
                }
                Some('[') => steps.push(self.brackets()?),
                Some(c) if ends.contains(&c) => return Ok(steps),
                None => return Ok(steps),
                Some(_) if steps.is_empty() => steps.push(self.field()?),
                Some(c) => return Err(format!("{c:?} is not expected here")),
            }
        }
    }

    fn field(&mut self) -> Result<Step, String> {
        if self.take("*") {
            return Ok(Step::All);
        }
        let mut name = String::new();
        loop {
            name.push_str(&self.until(|c| ".[]{}()\\ =!<>'\"".contains(c)));
            if !self.take("\\") {
                break;
            }
            name.extend(self.peek());
            self.at += 1;
        }
        if name.is_empty() { Err("a field's name is missing".to_owned()) } else { Ok(Step::Field(name)) }
    }

    fn brackets(&mut self) -> Result<Step, String> {
        self.expect("[")?;
        if self.take("?(") {
            let filter = self.filter()?;
            self.expect(")")?;
            self.expect("]")?;
            return Ok(Step::Filter(filter));
        }
        let mut steps = Vec::new();
        loop {
            self.blanks();
            steps.push(match self.peek() {
                Some('\'' | '"') => Step::Field(self.quoted()?),
                Some('*') if self.take("*") => Step::All,
                _ => self.index()?,
            });
            self.blanks();
            if !self.take(",") {
                break;
            }
        }
        self.expect("]")?;
        Ok(if steps.len() == 1 { steps.remove(0) } else { Step::Union(steps) })
    }

    fn index(&mut self) -> Result<Step, String> {
        let from = self.number()?;
        if !self.take(":") {
            return from.map(Step::Index).ok_or_else(|| "an index is missing".to_owned());
        }
        Ok(Step::Slice(from, self.number()?))
    }

    fn number(&mut self) -> Result<Option<i64>, String> {
        let digits = self.until(|c| !(c.is_ascii_digit() || c == '-'));
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| format!("{digits:?} is not an index"))
    }

    fn filter(&mut self) -> Result<Filter, String> {
        let left = self.operand()?;
        self.blanks();
        let tests = [
            ("==", Test::Equal),
            ("!=", Test::NotEqual),
            ("<=", Test::LessOrEqual),
            (">=", Test::GreaterOrEqual),
            ("<", Test::Less),
            (">", Test::Greater),
        ];
        let test = tests.into_iter().find(|(sign, _)| self.take(sign)).map(|(_, test)| test);
        let test = match test {
            Some(test) => Some((test, self.operand()?)),
            None => None,
        };
        self.blanks();
        Ok(Filter { left, test })
    }

    fn operand(&mut self) -> Result<Operand, String> {
        self.blanks();
        match self.peek() {
            Some('@' | '$') => Ok(Operand::Path(self.path(&[')', ' ', '=', '!', '<', '>'])?)),
            Some('"' | '\'') => Ok(Operand::Value(self.quoted()?.into())),
            _ => {
                let word = self.until(|c| ") =!<>".contains(c));
                let value = serde_json::from_str(&word);
                value.map(Operand::Value).map_err(|_| format!("{word:?} is no value; put texts into quotes"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({
            "items": [
                { "metadata": { "name": "a", "labels": { "wharfline.dev/x": "1" } }, "n": 1, "status": { "phase": "Bound" } },
                { "metadata": { "name": "b" }, "n": 2, "status": { "phase": "Pending" } },
                { "metadata": { "name": "c" }, "n": 3 },
            ],
            "status": { "conditions": [{ "type": "Placed", "status": "True" }, { "type": "Ready", "status": "False" }] },
        })
    }

    #[test]
    fn templates_are_rendered_as_kubectl_does() {
        for (template, wanted) in [
            ("{.items[0].metadata.name}", "a"),
            (".items[0].metadata.name", "a"),
            ("items[0].metadata.name", "a"),
            ("{.items[*].metadata.name}", "a b c"),
            ("{.items[-1].metadata.name}", "c"),
            ("{.items[0:2].n}", "1 2"),
            ("{.items[1:].n}", "2 3"),
            ("{.items[0,2].n}", "1 3"),
            ("{.items[0]['metadata']['name']}", "a"),
            ("{.items[0].metadata.labels['wharfline.dev/x']}", "1"),
            (r"{.items[0].metadata.labels.wharfline\.dev/x}", "1"),
            ("{.status.conditions[?(@.type==\"Ready\")].status}", "False"),
            ("{.status.conditions[?(@.type != 'Ready')].status}", "True"),
            ("{.items[?(@.n>1)].n}", "2 3"),
            ("{.items[?(@.n <= 2)].n}", "1 2"),
            ("{.items[?(@.status)].n}", "1 2"),
            ("{.items[?(@.status.phase=='Bound')].metadata.name}", "a"),
            ("{..phase}", "Bound Pending"),
            ("{range .items[*]}{.metadata.name}{\"\\t\"}{.n}{\"\\n\"}{end}", "a\t1\nb\t2\nc\t3\n"),
            ("n: {.items[0].n}, {'x'}", "n: 1, x"),
            ("{.missing.field}", ""),
            ("{.items[9]}", ""),
            ("{.items[0].metadata.labels}", "{\"wharfline.dev/x\":\"1\"}"),
            ("{$.items[0].n}", "1"),
            ("{.items[1].*.phase}", "Pending"),
        ] {
            assert_eq!(
                Template::parse(template).map(|t| t.render(&sample())).as_deref(),
                Ok(wanted),
                "{template}"
            );
        }
        assert_eq!(Template::parse("{.}").unwrap().render(&json!({"a": 1})), "{\"a\":1}");
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (template, at) in [
            ("{.a", 4),
            ("{.a[}", 5),
            ("{.a['x}", 8),
            ("{range .a[*]}{.b}", 18),
            ("{end}", 6),
            ("{.a[?(@.b==c)]}", 13),
            ("{.a]}", 4),
            ("{..}", 4),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert_eq!(error.at, at, "{template}: {error}");
        }
    }
}
