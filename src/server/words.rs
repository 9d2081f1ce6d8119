//! What `kubectl explain` says of the fields that are not of our own kinds: metadata, and the kinds of Kubernetes itself.
//!
//! Only the documents show this. What is checked on a write is the schema of the kind, which leaves most of these fields
//! open.
use serde_json::{Value, json};

/// The shape of a field: what stands in the document for it.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Text,
    Time,
    Number,
    Flag,
    /// An object whose fields follow, or an open one.
    Parts,
    /// Texts by name.
    Map,
    /// A list of texts.
    Texts,
    /// A list of objects, whose fields follow.
    List,
}
use Shape::{Flag, List, Map, Number, Parts, Text, Texts, Time};

/// A field by its path: dots between names; what lists hold is reached through the list's name.
type Words = &'static [(&'static str, Shape, &'static str)];

/// What every object has.
const COMMON: Words = &[
    ("apiVersion", Text, "Group and version of the kind, such as v1 or wharfline.dev/v1alpha1."),
    ("kind", Text, "The kind of the object, in camel case."),
    ("metadata", Parts, "Who the object is: name, labels, owners, and what the server keeps of it."),
    (
        "metadata.name",
        Text,
        "The name, unique among the objects of the kind in the namespace. It never changes.",
    ),
    (
        "metadata.generateName",
        Text,
        "The beginning of a name that the server completes with five letters, for objects created without a name.",
    ),
    (
        "metadata.namespace",
        Text,
        "The namespace that the object lives in; none for kinds of the whole cluster.",
    ),
    (
        "metadata.uid",
        Text,
        "Made by the server: tells this object from any that had the same name before or will have it.",
    ),
    ("metadata.selfLink", Text, "No longer in use; it is dropped."),
    (
        "metadata.resourceVersion",
        Text,
        "The revision of the store at which the object was last written. A write that carries an older one is refused with a conflict.",
    ),
    (
        "metadata.generation",
        Number,
        "Counts the changes of what is wanted; a status says which one it speaks of in observedGeneration.",
    ),
    ("metadata.creationTimestamp", Time, "When the server made the object."),
    (
        "metadata.deletionTimestamp",
        Time,
        "When deletion was asked for. The object goes once its finalizers are gone.",
    ),
    ("metadata.deletionGracePeriodSeconds", Number, "Always 0: nothing here is deleted later than at once."),
    ("metadata.labels", Map, "Short words by name that selectors choose by."),
    ("metadata.annotations", Map, "Texts by name that nothing chooses by, for tools and people."),
    (
        "metadata.finalizers",
        Texts,
        "Who must be done with the object before it may go, each by a name of its own.",
    ),
    (
        "metadata.ownerReferences",
        List,
        "The objects that this one depends on. It is deleted once all of them are gone.",
    ),
    ("metadata.ownerReferences.apiVersion", Text, "Group and version of the owner's kind."),
    ("metadata.ownerReferences.kind", Text, "Kind of the owner."),
    ("metadata.ownerReferences.name", Text, "Name of the owner."),
    ("metadata.ownerReferences.uid", Text, "Uid of the owner, by which it is found."),
    ("metadata.ownerReferences.controller", Flag, "Whether this owner manages the object; at most one may."),
    (
        "metadata.ownerReferences.blockOwnerDeletion",
        Flag,
        "Whether a foreground deletion of the owner waits for this object.",
    ),
    (
        "metadata.managedFields",
        List,
        "Which writer set which fields, as server-side apply keeps account of it.",
    ),
    ("metadata.managedFields.manager", Text, "The name that the writer gave itself."),
    ("metadata.managedFields.operation", Text, "Apply or Update: how the fields were written."),
    ("metadata.managedFields.apiVersion", Text, "The version of the kind that the fields are named in."),
    ("metadata.managedFields.time", Time, "When the set of fields last changed."),
    ("metadata.managedFields.fieldsType", Text, "The format of fieldsV1: always FieldsV1."),
    ("metadata.managedFields.fieldsV1", Parts, "The fields, as a tree of their names."),
    (
        "metadata.managedFields.subresource",
        Text,
        "The subresource that was written, such as status; empty for the object itself.",
    ),
];

const CONFIG_MAP: Words = &[
    ("", Parts, "Configuration as texts and files by name, for plugins and tasks to read."),
    ("data", Map, "Texts by name."),
    ("binaryData", Map, "Bytes by name, written as base64."),
    ("immutable", Flag, "Once true, the data cannot be changed; only the object can be deleted."),
];

const SECRET: Words = &[
    (
        "",
        Parts,
        "Values that must not be seen, such as the credentials of a storage system. The whole object is sealed in the store; a node reads it only for volumes of its own.",
    ),
    ("data", Map, "The values by name, written as base64."),
    (
        "stringData",
        Map,
        "Values by name in plain text, for writing alone: the server puts them into data as base64.",
    ),
    ("type", Text, "What the values are for; Opaque unless said. It never changes."),
    ("immutable", Flag, "Once true, the data cannot be changed; only the object can be deleted."),
];

const NAMESPACE: Words = &[
    ("", Parts, "A room for names. Deleting one deletes everything in it first."),
    ("spec", Parts, "Nothing here needs a spec."),
    ("status", Parts, "Kept by the server."),
    (
        "status.phase",
        Text,
        "Active, or Terminating once deletion was asked for: then nothing new can be made in it.",
    ),
];

const NODE: Words = &[
    ("", Parts, "A machine that runs the daemon. It is made when the machine joins."),
    ("spec", Parts, "What people want of the machine."),
    ("spec.unschedulable", Flag, "Whether new work is kept away, as by kubectl cordon. What runs stays."),
    ("spec.taints", List, "Marks that keep work away or take it off the machine."),
    ("spec.taints.key", Text, "The name of the mark, such as wharfline.dev/out-of-service."),
    (
        "spec.taints.value",
        Text,
        "What the mark says more closely. For wharfline.dev/out-of-service it is the boot that is declared dead.",
    ),
    ("spec.taints.effect", Text, "NoSchedule, PreferNoSchedule or NoExecute."),
    ("spec.taints.timeAdded", Time, "When the mark was set."),
    ("status", Parts, "What is known of the machine."),
    ("status.conditions", List, "Ready is True while the daemon is heard of."),
    ("status.conditions.type", Text, "The name of the condition, such as Ready."),
    ("status.conditions.status", Text, "True, False or Unknown."),
    ("status.conditions.reason", Text, "Why, in one word."),
    ("status.conditions.message", Text, "Why, in a sentence."),
    ("status.conditions.lastHeartbeatTime", Time, "When this was last looked at."),
    ("status.conditions.lastTransitionTime", Time, "When the status last changed."),
    ("status.addresses", List, "Names and addresses of the machine."),
    ("status.addresses.type", Text, "Hostname, InternalIP or another kind of address."),
    ("status.addresses.address", Text, "The address itself."),
    ("status.nodeInfo", Parts, "Kernel, boot and versions as the daemon reports them."),
];

const LEASE: Words = &[
    (
        "",
        Parts,
        "A right that somebody holds for a time: of the controllers to lead, of a node to count as alive.",
    ),
    ("spec", Parts, "Who holds it, and for how long."),
    ("spec.holderIdentity", Text, "Who holds it; empty when it was given back."),
    (
        "spec.leaseDurationSeconds",
        Number,
        "For how long after renewTime others must wait before they take it.",
    ),
    ("spec.acquireTime", Time, "When the holder came to hold it."),
    ("spec.renewTime", Time, "When the holder last said that it is there."),
    ("spec.leaseTransitions", Number, "How often it went from one holder to another."),
];

const OLD_EVENT: Words = &[
    ("", Parts, "Something that happened to an object. The same events are served in events.k8s.io/v1."),
    ("involvedObject", Parts, "The object that it happened to."),
    ("involvedObject.kind", Text, "Its kind."),
    ("involvedObject.namespace", Text, "Its namespace."),
    ("involvedObject.name", Text, "Its name."),
    ("involvedObject.uid", Text, "Its uid."),
    ("involvedObject.apiVersion", Text, "Group and version of its kind."),
    ("involvedObject.resourceVersion", Text, "Its revision when it happened."),
    ("involvedObject.fieldPath", Text, "The part of it that is meant."),
    ("reason", Text, "What happened, in one word in camel case."),
    ("message", Text, "What happened, in a sentence."),
    ("type", Text, "Normal or Warning."),
    ("source", Parts, "Who reports it, in the old form."),
    ("firstTimestamp", Time, "When it first happened."),
    ("lastTimestamp", Time, "When it last happened."),
    ("count", Number, "How often it happened."),
    ("eventTime", Time, "When it first happened, to the microsecond."),
    ("series", Parts, "How often and until when, for what happens again and again."),
    ("series.count", Number, "How often it happened in the series."),
    ("series.lastObservedTime", Time, "When it last happened."),
    ("action", Text, "What the reporter was doing."),
    ("related", Parts, "Another object that took part."),
    ("reportingComponent", Text, "The program that reports it."),
    ("reportingInstance", Text, "Which one of these programs; for a node's daemon, the node."),
];

const NEW_EVENT: Words = &[
    ("", Parts, "Something that happened to an object. The same events are served in v1."),
    ("regarding", Parts, "The object that it happened to."),
    ("regarding.kind", Text, "Its kind."),
    ("regarding.namespace", Text, "Its namespace."),
    ("regarding.name", Text, "Its name."),
    ("regarding.uid", Text, "Its uid."),
    ("regarding.apiVersion", Text, "Group and version of its kind."),
    ("reason", Text, "What happened, in one word in camel case."),
    ("note", Text, "What happened, in a sentence."),
    ("type", Text, "Normal or Warning."),
    ("eventTime", Time, "When it first happened, to the microsecond."),
    ("series", Parts, "How often and until when, for what happens again and again."),
    ("series.count", Number, "How often it happened in the series."),
    ("series.lastObservedTime", Time, "When it last happened."),
    ("action", Text, "What the reporter was doing."),
    ("related", Parts, "Another object that took part."),
    ("reportingController", Text, "The program that reports it."),
    ("reportingInstance", Text, "Which one of these programs; for a node's daemon, the node."),
];

const DEFINITION: Words = &[
    (
        "",
        Parts,
        "A kind that this server was built with, as Kubernetes describes the kinds that it was given. Read-only.",
    ),
    ("spec", Parts, "The names of the kind, its scope, and its one version with schema and columns."),
    ("spec.group", Text, "The group of the kind."),
    ("spec.names", Parts, "The names of the kind: kind, plural, singular, short ones."),
    ("spec.scope", Text, "Namespaced or Cluster."),
    ("spec.versions", List, "The versions; there is one."),
    ("spec.versions.name", Text, "The name of the version."),
    ("spec.versions.served", Flag, "Always true."),
    ("spec.versions.storage", Flag, "Always true."),
    ("status", Parts, "Established is always True."),
];

const ACCESS: Words = &[
    ("", Parts, "Asks whether you may do something. The answer is in the status; nothing is stored."),
    ("spec", Parts, "What you want to do: exactly one of the two."),
    ("spec.resourceAttributes", Parts, "A request for objects."),
    ("spec.resourceAttributes.namespace", Text, "The namespace; all of them when empty."),
    (
        "spec.resourceAttributes.verb",
        Text,
        "get, list, watch, create, update, patch, delete, deletecollection, or * for all.",
    ),
    ("spec.resourceAttributes.group", Text, "The group of the kind; * for all."),
    ("spec.resourceAttributes.version", Text, "The version of the kind; * for all."),
    ("spec.resourceAttributes.resource", Text, "The plural of the kind; * for all."),
    ("spec.resourceAttributes.subresource", Text, "status, or empty for the object itself."),
    ("spec.resourceAttributes.name", Text, "The object; all of them when empty."),
    ("spec.resourceAttributes.fieldSelector", Parts, "By which fields a list or watch would choose."),
    (
        "spec.resourceAttributes.labelSelector",
        Parts,
        "By which labels a list or watch would choose. No right depends on labels.",
    ),
    ("spec.nonResourceAttributes", Parts, "A request for a path."),
    ("spec.nonResourceAttributes.path", Text, "The path, such as /metrics."),
    ("spec.nonResourceAttributes.verb", Text, "The method in lower case, such as get."),
    ("status", Parts, "The answer."),
    ("status.allowed", Flag, "Whether you may."),
    ("status.reason", Text, "Why not."),
];

const RULES: Words = &[
    ("", Parts, "Asks what you may do in a namespace. The answer is in the status; nothing is stored."),
    ("spec", Parts, "Where."),
    ("spec.namespace", Text, "The namespace that is asked about."),
    ("status", Parts, "The answer: rules, and whether they are all."),
    ("status.incomplete", Flag, "Whether there are rights that rules cannot say, as those of nodes."),
];

const SUBJECT: Words = &[
    ("", Parts, "Asks who you are. The answer is in the status; nothing is stored."),
    ("status", Parts, "The answer."),
    ("status.userInfo", Parts, "The user that your certificate names, and its groups."),
    ("status.userInfo.username", Text, "The user."),
    ("status.userInfo.groups", Texts, "The groups, which decide what the user may do."),
];

fn words_of(group: &str, kind: &str) -> Words {
    match (group, kind) {
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Secret") => SECRET,
        ("", "Namespace") => NAMESPACE,
        ("", "Node") => NODE,
        ("", "Event") => OLD_EVENT,
        (_, "Event") => NEW_EVENT,
        ("coordination.k8s.io", "Lease") => LEASE,
        (_, "CustomResourceDefinition") => DEFINITION,
        (_, "SelfSubjectAccessReview") => ACCESS,
        (_, "SelfSubjectRulesReview") => RULES,
        (_, "SelfSubjectReview") => SUBJECT,
        _ => &[],
    }
}

/// Writes what there is to say into a schema of this kind.
pub(crate) fn describe(schema: &mut Value, group: &str, kind: &str) {
    for (path, shape, words) in COMMON.iter().chain(words_of(group, kind)) {
        let mut at = &mut *schema;
        for name in path.split('.').filter(|name| !name.is_empty()) {
            if at["items"].is_object() {
                at = &mut at["items"];
            }
            at = &mut at["properties"][name];
        }
        if at.get("type").is_none() {
            *at = shape.schema();
        }
        at["description"] = Value::from(*words);
    }
}

impl Shape {
    fn schema(self) -> Value {
        match self {
            Text => json!({ "type": "string" }),
            Time => json!({ "type": "string", "format": "date-time" }),
            Number => json!({ "type": "integer" }),
            Flag => json!({ "type": "boolean" }),
            Parts => json!({ "type": "object" }),
            Map => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            Texts => json!({ "type": "array", "items": { "type": "string" } }),
            List => json!({ "type": "array", "items": { "type": "object" } }),
        }
    }
}
