//! The witness: what the peer really sent, told apart from what our own gRPC stack makes up.
//!
//! tonic reports a plugin that was killed in the middle of a call as UNKNOWN and an oversized reply as OUT_OF_RANGE:
//! codes that a plugin may send too, and that would then be final. This layer sits between tonic's client and its
//! transport, sees the `grpc-status` of headers and trailers with its own eyes, and leaves a note of it in the
//! metadata. A peer cannot forge the note: it is removed from everything that arrives. Never changes a status.
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::transport::Error as TransportError;
use tower::Service;

const NOTE: HeaderName = HeaderName::from_static("wharfline-peer-status");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Removed: nobody here reads details, and tonic 0.14.9 panics where their base64 is broken
/// (`Status::from_header_map`); a plugin must not be able to do that to us.
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// A channel whose answers carry the note.
#[derive(Clone, Debug)]
pub(crate) struct Witnessed {
    channel: Channel,
}

impl Witnessed {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel }
    }
}

impl Service<http::Request<Body>> for Witnessed {
    type Response = http::Response<Body>;
    type Error = TransportError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.channel.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            note(answer.headers_mut());
            Ok(answer.map(|body| {
                Body::new(body.map_frame(|mut frame| {
                    if let Some(trailers) = frame.trailers_mut() {
                        note(trailers);
                    }
                    frame
                }))
            }))
        })
    }
}

fn note(headers: &mut HeaderMap) {
    headers.remove(NOTE);
    headers.remove(DETAILS);
    if let Some(status) = headers.get(STATUS).cloned() {
        headers.insert(NOTE, status);
    }
}

/// The status that the peer itself sent with what `metadata` belongs to.
///
/// `None` if it sent none, or none of the 17 canonical ones: such an answer tells nothing.
pub(crate) fn peer_code(metadata: &MetadataMap) -> Option<tonic::Code> {
    let sent: &HeaderValue = metadata.as_ref().get(NOTE)?;
    let number = sent.to_str().ok()?.parse::<i32>().ok()?;
    (0..=16).contains(&number).then(|| tonic::Code::from_i32(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pairs: &[(&'static str, &'static str)]) -> Option<tonic::Code> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        note(&mut headers);
        assert!(!headers.contains_key(DETAILS));
        peer_code(&MetadataMap::from_headers(headers))
    }

    #[test]
    fn only_a_canonical_status_is_noted() {
        assert_eq!(seen(&[("grpc-status", "0")]), Some(tonic::Code::Ok));
        assert_eq!(seen(&[("grpc-status", "13")]), Some(tonic::Code::Internal));
        assert_eq!(seen(&[("grpc-status", "16")]), Some(tonic::Code::Unauthenticated));
        for odd in ["", "17", "-1", "4294967296", "thirteen", "1 3"] {
            assert_eq!(seen(&[("grpc-status", odd)]), None, "{odd:?}");
        }
    }

    #[test]
    fn a_note_of_the_peers_own_making_is_removed() {
        assert_eq!(seen(&[("wharfline-peer-status", "3")]), None);
        assert_eq!(
            seen(&[("wharfline-peer-status", "3"), ("wharfline-peer-status", "5"), ("grpc-status", "14")]),
            Some(tonic::Code::Unavailable)
        );
    }

    #[test]
    fn broken_details_do_not_reach_tonic() {
        assert_eq!(
            seen(&[("grpc-status", "9"), ("grpc-status-details-bin", "%%%")]),
            Some(tonic::Code::FailedPrecondition)
        );
    }
}
