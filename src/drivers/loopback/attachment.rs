//! Which nodes have a volume, and whether one more may.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{IMAGE_KEY, TOKEN_KEY};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{AccessMode, Capability, VolumeId};

/// The nodes that a volume is attached to; part of its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attachments {
    #[serde(default)]
    pub(super) attachments: Vec<Attachment>,
    /// Its image shares blocks with another one, or did: what is written to it may all need room once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) shares: bool,
}

/// One volume on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attachment {
    pub(super) node: String,
    /// Made anew for each attachment: who does not have it was not told of this one.
    pub(super) token: String,
    pub(super) capability: Capability,
    pub(super) read_only: bool,
}

/// What is to be done about an attachment that is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is there as asked.
    Attached,
    /// It has to be made.
    Attach,
}

impl Attachment {
    /// Whether the node may not write.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only || self.capability.mode.is_read_only()
    }

    /// What the caller takes to the node.
    pub(super) fn context(&self, volume: &VolumeId) -> BTreeMap<String, String> {
        [(TOKEN_KEY.to_owned(), self.token.clone()), (IMAGE_KEY.to_owned(), image(volume))].into()
    }
}

fn image(volume: &VolumeId) -> String {
    format!("volumes/{}/image", volume.as_str())
}

impl Attachments {
    pub(super) fn on(&self, node: &str) -> Option<&Attachment> {
        self.attachments.iter().find(|attachment| attachment.node == node)
    }

    /// Whether `asked` may be added. Its token does not matter.
    pub(super) fn next(&self, volume: &VolumeId, asked: &Attachment) -> Result<Next, Refusal> {
        let volume = volume.as_str().to_owned();
        if let Some(known) = self.on(&asked.node) {
            let node = known.node.clone();
            return if known.capability != asked.capability {
                Err(Refusal::AttachedOtherwise { volume, node, what: "volume_capability" })
            } else if known.read_only != asked.read_only {
                Err(Refusal::AttachedOtherwise { volume, node, what: "readonly" })
            } else {
                Ok(Next::Attached)
            };
        }
        match self.attachments.iter().find(|other| !may_share(other, asked)) {
            None => Ok(Next::Attach),
            Some(other) => Err(Refusal::InUse { volume, by: format!("attached to node {}", other.node) }),
        }
    }

    /// The attachment to `node` that a call with this publish context is about.
    pub(super) fn called(
        &self,
        volume: &VolumeId,
        node: &str,
        context: &BTreeMap<String, String>,
    ) -> Result<&Attachment, Refusal> {
        let refused =
            |how| Refusal::NotAttached { volume: volume.as_str().to_owned(), node: node.to_owned(), how };
        let given = |key| {
            context.get(key).ok_or_else(|| Refusal::Invalid {
                field: "publish_context",
                problem: format!("has no {key:?}: it is not what ControllerPublishVolume answered"),
            })
        };
        let (token, path) = (given(TOKEN_KEY)?, given(IMAGE_KEY)?);
        let attachment = self.on(node).ok_or_else(|| refused(""))?;
        if attachment.token != *token {
            return Err(refused(" by the publish context given: that attachment is over"));
        }
        if image(volume) != *path {
            return Err(Refusal::Invalid {
                field: "publish_context",
                problem: format!("{IMAGE_KEY:?} is the image of another volume"),
            });
        }
        Ok(attachment)
    }
}

/// Nodes share a volume only in the modes made for it, all in the same one.
fn may_share(one: &Attachment, other: &Attachment) -> bool {
    let mode = one.capability.mode;
    let writers = [one, other].into_iter().filter(|attachment| !attachment.is_read_only()).count();
    mode == other.capability.mode
        && match mode {
            AccessMode::Writer
            | AccessMode::ReaderOnly
            | AccessMode::SingleWriter
            | AccessMode::MultiWriter => false,
            AccessMode::NodesSingleWriter => writers < 2,
            AccessMode::NodesReaderOnly | AccessMode::NodesMultiWriter => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [AccessMode; 7] = [
        AccessMode::Writer,
        AccessMode::ReaderOnly,
        AccessMode::SingleWriter,
        AccessMode::MultiWriter,
        AccessMode::NodesReaderOnly,
        AccessMode::NodesSingleWriter,
        AccessMode::NodesMultiWriter,
    ];

    fn id() -> VolumeId {
        VolumeId::parse("0123456789abcdef0123").unwrap()
    }

    fn on(node: &str, mode: AccessMode, read_only: bool) -> Attachment {
        let capability = Capability { mode, block: true, fs_type: String::new(), mount_flags: Vec::new() };
        Attachment { node: node.to_owned(), token: format!("token of {node}"), capability, read_only }
    }

    fn held(attachments: &[Attachment]) -> Attachments {
        Attachments { attachments: attachments.to_vec(), shares: false }
    }

    #[test]
    fn the_same_again_is_there_and_anything_else_is_another() {
        for mode in MODES {
            let known = on("a", mode, false);
            let again = Attachment { token: String::new(), ..known.clone() };
            assert_eq!(held(std::slice::from_ref(&known)).next(&id(), &again).unwrap(), Next::Attached);
            for (other, differs) in [
                (on("a", mode, true), "readonly"),
                (on("a", if mode == MODES[0] { MODES[1] } else { MODES[0] }, false), "volume_capability"),
            ] {
                let verdict = held(std::slice::from_ref(&known)).next(&id(), &other);
                assert!(
                    matches!(&verdict, Err(Refusal::AttachedOtherwise { what, .. }) if *what == differs),
                    "{verdict:?}"
                );
            }
        }
    }

    #[test]
    fn a_second_node_is_for_the_modes_made_for_it() {
        for one in MODES {
            for two in MODES {
                for (first_reads, second_reads) in
                    [(false, false), (true, false), (false, true), (true, true)]
                {
                    let (first, second) = (on("a", one, first_reads), on("b", two, second_reads));
                    let verdict = held(&[first]).next(&id(), &second);
                    let one_writes = first_reads || second_reads || one != AccessMode::NodesSingleWriter;
                    if one == two && one.is_for_nodes() && one_writes {
                        assert_eq!(verdict.unwrap(), Next::Attach);
                    } else {
                        let Err(Refusal::InUse { by, .. }) = verdict else { panic!("{one:?} {two:?}") };
                        assert_eq!(by, "attached to node a");
                    }
                }
            }
        }
    }

    #[test]
    fn only_the_context_of_this_attachment_will_do() {
        let all = held(&[on("a", MODES[0], false)]);
        let good = all.attachments[0].context(&id());
        assert_eq!(all.called(&id(), "a", &good).unwrap(), &all.attachments[0]);
        let with = |key: &str, value: Option<&str>| {
            let mut context = good.clone();
            match value {
                Some(value) => context.insert(key.to_owned(), value.to_owned()),
                None => context.remove(key),
            };
            context
        };
        for malformed in [
            BTreeMap::new(),
            with(TOKEN_KEY, None),
            with(IMAGE_KEY, None),
            with(IMAGE_KEY, Some("volumes/0123456789abcdef0124/image")),
        ] {
            let verdict = all.called(&id(), "a", &malformed);
            assert!(
                matches!(verdict, Err(Refusal::Invalid { field: "publish_context", .. })),
                "{malformed:?}"
            );
        }
        for (node, context) in [("a", with(TOKEN_KEY, Some("token of b"))), ("b", good.clone())] {
            let verdict = all.called(&id(), node, &context);
            assert!(matches!(verdict, Err(Refusal::NotAttached { .. })), "{node} {context:?}");
        }
    }
}
