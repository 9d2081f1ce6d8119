//! What of etcd's wire is spoken (`etcdserverpb`, `mvccpb`); its own client has these to itself.
use bytes::Bytes;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty = ($($tag:tt)*),)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct $name { $(#[prost($($tag)*)] pub $field: $kind,)* })*
    };
}

messages! {
    ResponseHeader {
        cluster_id: u64 = (uint64, tag = "1"),
        member_id: u64 = (uint64, tag = "2"),
        revision: i64 = (int64, tag = "3"),
    }
    KeyValue {
        key: Bytes = (bytes = "bytes", tag = "1"),
        create_revision: i64 = (int64, tag = "2"),
        mod_revision: i64 = (int64, tag = "3"),
        version: i64 = (int64, tag = "4"),
        value: Bytes = (bytes = "bytes", tag = "5"),
    }
    /// Type 0 is a put, 1 a deletion.
    Event {
        kind: i32 = (int32, tag = "1"),
        kv: Option<KeyValue> = (message, optional, tag = "2"),
        prev_kv: Option<KeyValue> = (message, optional, tag = "3"),
    }
    RangeRequest {
        key: Bytes = (bytes = "bytes", tag = "1"),
        range_end: Bytes = (bytes = "bytes", tag = "2"),
        limit: i64 = (int64, tag = "3"),
        revision: i64 = (int64, tag = "4"),
        count_only: bool = (bool, tag = "9"),
    }
    RangeResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        kvs: Vec<KeyValue> = (message, repeated, tag = "2"),
        more: bool = (bool, tag = "3"),
        count: i64 = (int64, tag = "4"),
    }
    PutRequest {
        key: Bytes = (bytes = "bytes", tag = "1"),
        value: Bytes = (bytes = "bytes", tag = "2"),
    }
    DeleteRangeRequest {
        key: Bytes = (bytes = "bytes", tag = "1"),
    }
    /// The answers to a put and to a deletion, of which nobody reads more.
    Written {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
    }
    RequestOp {
        request: Option<Request> = (oneof = "Request", tags = "1, 2, 3"),
    }
    ResponseOp {
        response: Option<Response> = (oneof = "Response", tags = "1, 2, 3"),
    }
    /// Result: 0 equal, 1 greater, 2 less. Target: 1 create revision, 2 mod revision.
    Compare {
        result: i32 = (int32, tag = "1"),
        target: i32 = (int32, tag = "2"),
        key: Bytes = (bytes = "bytes", tag = "3"),
        wanted: Option<Wanted> = (oneof = "Wanted", tags = "5, 6"),
    }
    TxnRequest {
        compare: Vec<Compare> = (message, repeated, tag = "1"),
        success: Vec<RequestOp> = (message, repeated, tag = "2"),
        failure: Vec<RequestOp> = (message, repeated, tag = "3"),
    }
    TxnResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        succeeded: bool = (bool, tag = "2"),
        responses: Vec<ResponseOp> = (message, repeated, tag = "3"),
    }
    CompactionRequest {
        revision: i64 = (int64, tag = "1"),
    }
    WatchRequest {
        create_request: Option<WatchCreateRequest> = (message, optional, tag = "1"),
    }
    WatchCreateRequest {
        start_revision: i64 = (int64, tag = "3"),
    }
    WatchResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        created: bool = (bool, tag = "3"),
        canceled: bool = (bool, tag = "4"),
        compact_revision: i64 = (int64, tag = "5"),
        events: Vec<Event> = (message, repeated, tag = "11"),
    }
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Request {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Response {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(Written),
    #[prost(message, tag = "3")]
    Delete(Written),
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Wanted {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}
