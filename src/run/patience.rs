//! A client that waits so long and no longer: a connection that died without a word must not leave a daemon blind.
//!
//! The server says something on every watch each five seconds (`ServerOptions::bookmark_interval`), so silence means that
//! nobody is there. kube-runtime's own patience is five minutes for a watch, and endless for a list.
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::client::Body;
use tower::service_fn;

/// How long the head of an answer may take.
const HEAD: Duration = Duration::from_secs(15);
/// How long an answer may pause between two pieces: three bookmarks.
const PAUSE: Duration = Duration::from_secs(15);

/// The same client, which fails with a timeout where it would have waited for ever.
pub fn patient(client: kube::Client) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            match tokio::time::timeout(HEAD, client.send(request)).await {
                Ok(answer) => answer.map(|answer| answer.map(impatient)),
                Err(_) => Err(kube::Error::Service("the API did not answer in time".into())),
            }
        }
    });
    kube::Client::new(service, namespace)
}

type Frames = BoxStream<'static, Result<Frame<Bytes>, kube::Error>>;

fn impatient(body: Body) -> StreamBody<Frames> {
    let frames = futures::stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        match tokio::time::timeout(PAUSE, body.frame()).await {
            Ok(None) => None,
            Ok(Some(Ok(frame))) => Some((Ok(frame), Some(body))),
            Ok(Some(Err(error))) => Some((Err(error), None)),
            Err(_) => {
                let silent = io::Error::new(io::ErrorKind::TimedOut, "the API fell silent");
                Some((Err(kube::Error::Service(Box::new(silent))), None))
            }
        }
    });
    StreamBody::new(frames.boxed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;

    /// A client of a server that answers after `head` and then says a word each `pause`, three times.
    fn slow(head: Duration, pause: Duration) -> kube::Client {
        let service = service_fn(move |_: Request<Body>| async move {
            tokio::time::sleep(head).await;
            let words = futures::stream::iter(0..3).then(move |_| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"word ")))
            });
            Ok::<_, io::Error>(Response::new(StreamBody::new(words.boxed())))
        });
        patient(kube::Client::new(service, "default"))
    }

    async fn answer(client: &kube::Client) -> Result<Bytes, kube::Error> {
        let request = Request::get("/x").body(Body::empty()).unwrap();
        let body = client.send(request).await?.into_body();
        Ok(body.collect().await?.to_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn who_speaks_in_time_is_heard_out() {
        let almost = Duration::from_secs(14);
        assert_eq!(answer(&slow(almost, almost)).await.unwrap(), "word word word ");
    }

    #[tokio::test(start_paused = true)]
    async fn who_falls_silent_is_given_up() {
        let (soon, late) = (Duration::from_secs(1), Duration::from_secs(16));
        for client in [slow(late, soon), slow(soon, late)] {
            let error = answer(&client).await.unwrap_err();
            assert!(matches!(error, kube::Error::Service(_)), "{error:?}");
        }
    }
}
