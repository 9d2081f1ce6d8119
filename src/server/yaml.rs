//! Request bodies in YAML: one document, as JSON. The only file of the server that knows serde-saphyr.
use serde_json::Value;

use super::body::{MAX_BODY, MAX_DEPTH};
use super::status::Refusal;

/// The value of the one document in the text. What grows by aliases, nests deep or names a key twice is refused.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, Refusal> {
    let bad = |why: &str| Refusal::bad_request(format!("the body is not valid YAML: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|e| bad(&e.to_string()))?;
    let options = serde_saphyr::options! {
        reject_unsupported_tags: true,
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! { max_documents: 2, max_nodes: 200_000, max_depth: MAX_DEPTH, max_total_scalar_bytes: 2 * MAX_BODY },
        // What aliases repeat may not grow far beyond the size of a body.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 },
    };
    let mut documents: Vec<Value> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let told = error.without_snippet().to_string();
            bad(told.lines().next().unwrap_or_default().trim_start_matches("error: "))
        })?;
    match (documents.pop(), documents.is_empty()) {
        (Some(one), true) => Ok(one),
        _ => Err(bad("one document is wanted")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::read;

    #[test]
    fn yaml_becomes_what_it_says() {
        let text = b"kind: X\nspec:\n  on: \"yes\"\n  list: [1, 2.5, null]\n  same: &a {b: c}\n  again: *a\n";
        let wanted = json!({ "kind": "X", "spec": {
            "on": "yes", "list": [1, 2.5, null], "same": { "b": "c" }, "again": { "b": "c" }
        } });
        assert_eq!(read(text).unwrap(), wanted);
    }

    #[test]
    fn what_does_harm_is_refused() {
        let level = |level: u8| match level {
            0 => format!("a0: &a0 [{}]\n", "x,".repeat(10)),
            level => format!("a{level}: &a{level} [{}]\n", format!("*a{},", level - 1).repeat(10)),
        };
        let bomb: String = (0..9).map(level).collect();
        for bad in [
            bomb,
            "[".repeat(5_000),
            format!("{}1{}", "[".repeat(80), "]".repeat(80)),
            "a: 1\na: 2\n".to_owned(),
            "a: 1\n---\nb: 2\n".to_owned(),
            "a: !thing 1\n".to_owned(),
            "a: [".to_owned(),
            String::new(),
        ] {
            let shown: String = bad.chars().take(30).collect();
            assert_eq!(read(bad.as_bytes()).unwrap_err().code, 400, "{shown}");
        }
        assert_eq!(read(&[0xFF]).unwrap_err().code, 400);
    }
}
