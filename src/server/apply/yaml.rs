//! YAML of a request as JSON. The only file of the server that knows serde-saphyr.
use serde_json::Value;

use crate::server::body;
use crate::server::status::Refusal;

/// One document. Keys that stand twice and aliases that grow it beyond measure are refused.
pub(super) fn read(bytes: &[u8]) -> Result<Value, Refusal> {
    let bad = |why: &str| Refusal::bad_request(format!("error decoding YAML: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|_| bad("it is not UTF-8"))?;
    let options = serde_saphyr::options! {
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! { max_documents: 1, max_nodes: 200_000 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 },
    };
    let value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let text = error.to_string();
        bad(text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })?;
    // The depth that JSON may have.
    body::json(value.to_string().as_bytes())
}
