//! What is looked up before a driver is asked again that said NOT_FOUND (CO-ERR-05): whether our record of the volume stands.
//! What the driver itself says of it only its host may ask (`hosting::lookup`).
use super::context::Node;
use super::mounts::in_words;
use crate::api::Volume;
use crate::csi::Failure;

/// The Volume of this name, as the server itself has it, if it has this handle; else what has become of it.
pub(super) async fn record(node: &Node, name: &str, handle: &str) -> Result<Volume, String> {
    stands(node.volume(name).await, (name, handle))
}

fn stands(read: Result<Option<Volume>, kube::Error>, (name, handle): (&str, &str)) -> Result<Volume, String> {
    match read {
        Ok(Some(volume)) if handle_of(&volume) == handle => Ok(volume),
        Ok(Some(_)) => Err(format!("Volume \"{name}\" has another handle by now")),
        Ok(None) => Err(format!("there is no Volume \"{name}\" any more")),
        Err(error) => Err(format!("Volume \"{name}\" could not be read: {}", in_words(&error))),
    }
}

/// Whether a volume is none of this node's to look up: another one makes its calls.
fn is_anothers(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

fn handle_of(volume: &Volume) -> &str {
    let given =
        volume.status.as_ref().map(|status| status.handle.as_str()).filter(|handle| !handle.is_empty());
    given.or(volume.spec.source.told().map(|(handle, _)| handle)).unwrap_or_default()
}

/// What is told of a record that has the handle still: nothing that the backend says.
pub(super) fn standing(name: &str, handle: &str) -> String {
    format!("the record here, {name}, has the handle {handle:?} still")
}

/// The failure with what was found.
pub(super) fn with(failure: Failure, found: &str) -> Failure {
    Failure { message: format!("{}; looked up: {found}", failure.message), ..failure }
}

/// What a driver of a node did not find, with what our record says of it.
pub(super) async fn of_node(node: &Node, (name, handle): (&str, &str), failure: Failure) -> Failure {
    if !failure.is_not_found() {
        return failure;
    }
    match Box::pin(node.volume(name)).await {
        Err(error) if is_anothers(&error) => failure,
        read => match stands(read, (name, handle)) {
            Ok(_) => with(failure, &standing(&format!("Volume \"{name}\""), handle)),
            Err(found) => with(failure, &found),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_handle_that_was_given_counts_before_the_one_that_was_named() {
        let source = json!({ "existing": { "handle": "named" } });
        let volume = |source: serde_json::Value, given: &str| -> Volume {
            serde_json::from_value(json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume",
                "metadata": { "name": "v" }, "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"], "source": source },
                "status": { "handle": given } }))
            .unwrap()
        };
        for (source, given, wanted) in [
            (source.clone(), "given", "given"),
            (source, "", "named"),
            (json!({ "create": { "name": "v", "requiredBytes": 1 } }), "", ""),
        ] {
            assert_eq!(handle_of(&volume(source, given)), wanted);
        }
    }
}
