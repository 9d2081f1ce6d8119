//! What the container of a task is called in containerd, what is written on it, and which of those that are found there
//! are nobody's any more.

/// The longest name that containerd takes.
const LONGEST: usize = 76;
/// So much of a random word tells one start of a task from another.
const WORD: usize = 16;

/// The name of a container: for people what it belongs to, `NAMESPACE.NAME.TASK`, as far as there is room, and for each
/// start another word, so that what is removed late is never what was started since. `allocation` is `NAMESPACE/NAME`.
pub fn name(allocation: &str, task: &str, word: &str) -> String {
    let room = LONGEST - WORD - 1;
    let mut name = String::new();
    for letter in allocation.chars().chain(['.']).chain(task.chars()) {
        let letter = match letter {
            '/' => '.',
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => letter,
            _ => '_',
        };
        let separates = !letter.is_ascii_alphanumeric();
        // containerd wants a letter or digit on either side of each.
        let beside = name.ends_with(|last: char| !last.is_ascii_alphanumeric()) || name.is_empty();
        if name.len() < room && !(separates && beside) {
            name.push(letter);
        }
    }
    let name = name.trim_end_matches(|last: char| !last.is_ascii_alphanumeric());
    let word: String = word.chars().filter(char::is_ascii_alphanumeric).take(WORD).collect();
    if name.is_empty() { word } else { format!("{name}-{word}") }
}

/// What is written on a container for people and for their tools. `allocation` is `NAMESPACE/NAME`.
pub fn labels(node: &str, (allocation, uid): (&str, &str), task: &str) -> Vec<(String, String)> {
    let all = [("node", node), ("allocation", allocation), ("allocation-uid", uid), ("task", task)];
    all.map(|(name, value)| (format!("wharfline.dev/{name}"), value.to_owned())).into()
}

/// What is done with a container that is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// It is somebody else's, or its task is known: that one's own course takes care of it.
    Leave,
    /// Nothing knows of it and nothing runs in it.
    Remove,
    /// Nothing knows of it, and it runs: a person is told. Whose it is nobody can say.
    Tell,
}

/// What is seen of a container that says it is of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// It was made for a task of this node's directory.
    pub ours: bool,
    /// There are records of that task.
    pub known: bool,
    /// It has a process.
    pub runs: bool,
}

/// What is done with it.
pub fn leftover(seen: Seen) -> Leftover {
    match (seen.ours, seen.known, seen.runs) {
        (false, _, _) | (true, true, _) => Leftover::Leave,
        (true, false, false) => Leftover::Remove,
        (true, false, true) => Leftover::Tell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What containerd takes: letters and digits in groups, with one of `._-` between each two.
    fn is_taken(name: &str) -> bool {
        let group = |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_alphanumeric());
        name.len() <= LONGEST && name.split(['.', '_', '-']).all(group)
    }

    #[test]
    fn names_are_what_containerd_takes_and_each_starts_own() {
        let word = "0123456789abcdef0123456789abcdef";
        let long = "x".repeat(63);
        for (allocation, task, wanted) in [
            ("shop/app", "main", "shop.app.main-0123456789abcdef"),
            ("shop/a-b", "c", "shop.a-b.c-0123456789abcdef"),
            ("shop/a--b", "c-", "shop.a-b.c-0123456789abcdef"),
            ("/", "", "0123456789abcdef"),
            ("é/b", "t", "b.t-0123456789abcdef"),
            ("a/bé", "t", "a.b_t-0123456789abcdef"),
        ] {
            assert_eq!(name(allocation, task, word), wanted);
            assert!(is_taken(wanted), "{wanted}");
        }
        let cut = name(&format!("{long}/{long}"), &long, word);
        assert!(is_taken(&cut) && cut.len() == LONGEST, "{cut}");
        assert!(cut.ends_with("x-0123456789abcdef"), "{cut}");
        assert_ne!(name("a/b", "c", "0123456789abcdef"), name("a/b", "c", "1123456789abcdef"));
    }

    #[test]
    fn the_labels_say_whose_it_is() {
        let all = labels("n1", ("shop/app", "6e3f"), "main");
        let all: Vec<_> = all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            all,
            [
                ("wharfline.dev/node", "n1"),
                ("wharfline.dev/allocation", "shop/app"),
                ("wharfline.dev/allocation-uid", "6e3f"),
                ("wharfline.dev/task", "main"),
            ]
        );
    }

    #[test]
    fn only_what_is_ours_unknown_and_dead_is_removed() {
        for (ours, known, runs, wanted) in [
            (false, false, false, Leftover::Leave),
            (false, false, true, Leftover::Leave),
            (false, true, false, Leftover::Leave),
            (false, true, true, Leftover::Leave),
            (true, false, false, Leftover::Remove),
            (true, false, true, Leftover::Tell),
            (true, true, false, Leftover::Leave),
            (true, true, true, Leftover::Leave),
        ] {
            assert_eq!(leftover(Seen { ours, known, runs }), wanted, "{ours} {known} {runs}");
        }
    }
}
