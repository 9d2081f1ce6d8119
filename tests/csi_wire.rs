//! `proto/csi.proto` says what the table of facts says, no more and no less, and `Debug` hides what it must.
use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    ServiceDescriptor,
};
use wharfline::csi::proto;

const FACTS: &str = include_str!("../proto/csi-wire.tsv");
const PACKAGE: &str = "csi.v1";

#[test]
fn the_compiled_descriptor_is_the_table() {
    let facts =
        FACTS.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<BTreeSet<_>>();
    let compiled = rows(&pool());
    let missing = facts.difference(&compiled).collect::<Vec<_>>();
    let extra = compiled.difference(&facts).collect::<Vec<_>>();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:#?}\nextra: {extra:#?}");
    assert!(compiled.len() > 300, "only {} rows", compiled.len());
}

#[test]
fn the_alpha_list_is_what_the_table_marks() {
    let marked = FACTS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let cells = line.split('\t').collect::<Vec<_>>();
        let name = match cells[0] {
            "extension" => return None,
            "message" | "service" => format!("{PACKAGE}.{}", cells[1]),
            _ => format!("{PACKAGE}.{}.{}", cells[1], cells[2]),
        };
        cells[7].contains("alpha_").then_some(name)
    });
    assert_eq!(marked.collect::<BTreeSet<_>>(), proto::ALPHA.iter().map(|name| (*name).to_owned()).collect());
    assert!(proto::ALPHA.contains(&"csi.v1.SnapshotMetadata"));
}

#[test]
fn no_debug_of_a_message_shows_a_secret() {
    let canary = "canary-in-debug";
    let secrets = || [("password".to_owned(), canary.to_owned())].into();
    let capability = || proto::VolumeCapability {
        access_mode: None,
        access_type: Some(proto::volume_capability::AccessType::Mount(
            proto::volume_capability::MountVolume {
                fs_type: "ext4".into(),
                mount_flags: vec![format!("password={canary}")],
                volume_mount_group: String::new(),
            },
        )),
    };
    let stage = proto::NodeStageVolumeRequest {
        volume_id: "vol-1".into(),
        publish_context: secrets(),
        secrets: secrets(),
        volume_context: secrets(),
        volume_capability: Some(capability()),
        ..Default::default()
    };
    let create = proto::CreateVolumeRequest {
        secrets: secrets(),
        volume_capabilities: vec![capability()],
        ..Default::default()
    };
    let volume = proto::Volume { volume_context: secrets(), ..Default::default() };
    for shown in [format!("{stage:?}"), format!("{create:#?}"), format!("{volume:?}")] {
        assert!(!shown.contains(canary), "{shown}");
    }
    assert!(format!("{stage:?}").contains("secrets: <1 redacted>"), "{stage:?}");
    assert!(format!("{stage:?}").contains(r#"publish_context: ["password"]"#), "{stage:?}");
}

/// The Debug of each message given, with one secret in it, by the message's name.
macro_rules! shown {
    ($($message:ident)*) => {
        BTreeMap::from([$((stringify!($message).to_owned(), {
            let secrets = [("password".to_owned(), "canary-in-debug".to_owned())].into();
            let message = proto::$message { secrets, ..Default::default() };
            format!("{message:?} {message:#?}")
        })),*])
    };
}

/// Whichever message a field marked secret is in, it is hidden: the descriptor drives the generated code.
#[test]
fn every_message_with_secrets_hides_them() {
    let pool = pool();
    let secret = pool.get_extension_by_name("csi.v1.csi_secret").unwrap();
    let marked = |field: &FieldDescriptor| field.options().get_extension(&secret).as_bool() == Some(true);
    let owners = ours(&pool).filter(|message| message.fields().any(|field| marked(&field)));
    let shown = shown! {
        CreateVolumeRequest DeleteVolumeRequest ControllerPublishVolumeRequest ControllerUnpublishVolumeRequest
        ValidateVolumeCapabilitiesRequest ControllerExpandVolumeRequest ControllerModifyVolumeRequest
        CreateSnapshotRequest DeleteSnapshotRequest ListSnapshotsRequest GetSnapshotRequest
        CreateVolumeGroupSnapshotRequest DeleteVolumeGroupSnapshotRequest GetVolumeGroupSnapshotRequest
        GetMetadataAllocatedRequest GetMetadataDeltaRequest
        NodeStageVolumeRequest NodePublishVolumeRequest NodeExpandVolumeRequest
    };
    assert_eq!(
        owners.map(|message| message.name().to_owned()).collect::<BTreeSet<_>>(),
        shown.keys().cloned().collect()
    );
    assert_eq!(shown.len(), 19);
    for (message, text) in shown {
        assert!(!text.contains("canary"), "{text}");
        assert!(text.contains("secrets: <1 redacted>"), "{message}: {text}");
    }
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(proto::FILE_DESCRIPTOR_SET).expect("build.rs wrote it")
}

fn ours(pool: &DescriptorPool) -> impl Iterator<Item = MessageDescriptor> {
    pool.all_messages().filter(|message| message.package_name() == PACKAGE && !message.is_map_entry())
}

/// The descriptor in the form of the table.
fn rows(pool: &DescriptorPool) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for extension in
        pool.all_extensions().filter(|extension| extension.parent_file().package_name() == PACKAGE)
    {
        let (owner, name, number) =
            (extension.containing_message(), extension.name().to_owned(), extension.number());
        rows.insert(format!("extension\t{}\t{name}\t{number}\tbool\t-\t-\t-", owner.full_name()));
        assert!(matches!(extension.kind(), Kind::Bool));
    }
    for message in ours(pool) {
        let options = options(&message.options());
        if message.fields().len() == 0 && message.child_messages().len() == 0 || options != "-" {
            rows.insert(format!("message\t{}\t-\t-\t-\t-\t-\t{options}", local(message.full_name())));
        }
        rows.extend(message.fields().map(|field| field_row(&message, &field)));
    }
    for kind in pool.all_enums().filter(|kind| kind.package_name() == PACKAGE) {
        rows.extend(enum_rows(&kind));
    }
    for service in pool.services() {
        rows.extend(service_rows(&service));
    }
    rows
}

fn field_row(message: &MessageDescriptor, field: &FieldDescriptor) -> String {
    let (kind, label) = if field.is_map() {
        let Kind::Message(entry) = field.kind() else { panic!("a map has an entry") };
        let of = |name| kind_name(&entry.get_field_by_name(name).expect("entries have both").kind());
        (format!("map<{},{}>", of("key"), of("value")), "map")
    } else if field.cardinality() == Cardinality::Repeated {
        (kind_name(&field.kind()), "repeated")
    } else {
        (kind_name(&field.kind()), "single")
    };
    let oneof = field.containing_oneof().map_or("-".to_owned(), |oneof| oneof.name().to_owned());
    format!(
        "field\t{}\t{}\t{}\t{kind}\t{label}\t{oneof}\t{}",
        local(message.full_name()),
        field.name(),
        field.number(),
        options(&field.options())
    )
}

fn enum_rows(kind: &EnumDescriptor) -> Vec<String> {
    let owner = local(kind.full_name()).to_owned();
    kind.values()
        .map(|value| {
            format!(
                "enum\t{owner}\t{}\t{}\t-\t-\t-\t{}",
                value.name(),
                value.number(),
                options(&value.options())
            )
        })
        .collect()
}

fn service_rows(service: &ServiceDescriptor) -> Vec<String> {
    let own = options(&service.options());
    let mut rows = service
        .methods()
        .map(|method| {
            assert!(!method.is_client_streaming());
            format!(
                "rpc\t{}\t{}\t-\t{}\t{}\t{}\t{}",
                service.name(),
                method.name(),
                local(method.input().full_name()),
                local(method.output().full_name()),
                if method.is_server_streaming() { "server-stream" } else { "unary" },
                options(&method.options())
            )
        })
        .collect::<Vec<_>>();
    if own != "-" {
        rows.push(format!("service\t{}\t-\t-\t-\t-\t-\t{own}", service.name()));
    }
    rows
}

fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => local(message.full_name()).to_owned(),
        Kind::Enum(kind) => local(kind.full_name()).to_owned(),
        scalar => format!("{scalar:?}"),
    }
}

fn local(full_name: &str) -> &str {
    full_name.strip_prefix("csi.v1.").unwrap_or(full_name)
}

/// The names of the boolean options set, in order of their numbers.
fn options(options: &DynamicMessage) -> String {
    let mut set = options
        .extensions()
        .filter(|(_, value)| value.as_bool() == Some(true))
        .map(|(extension, _)| (extension.number(), extension.name().to_owned()))
        .collect::<Vec<_>>();
    set.sort();
    if set.is_empty() {
        "-".to_owned()
    } else {
        set.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(",")
    }
}
