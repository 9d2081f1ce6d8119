//! The whole store as a file, for an administrator: the state at one revision, Secrets sealed as they are.
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::request::Parts;
use http::{Method, StatusCode, header};

use super::Server;
use super::access::{ADMINS, Identity};
use super::objects::refused;
use super::status::Refusal;
use crate::store::archive::{self, Writer};

/// Sends the file.
pub(crate) async fn send(server: &Server, parts: &Parts, identity: &Identity) -> Result<Response, Refusal> {
    if parts.method != Method::GET {
        return Err(Refusal::method_not_allowed());
    }
    if !identity.is_in(ADMINS) {
        let message = format!("User \"{}\" cannot read the whole store", identity.user);
        return Err(Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message));
    }
    let store = std::sync::Arc::clone(&server.inner.objects.store);
    let at = store.revision().await.map_err(refused)?;
    tracing::info!(user = identity.user, revision = at.0, "the store is backed up");
    let (send, lines) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    tokio::spawn(async move {
        let (mut writer, first) = Writer::begin(at);
        let mut pages = archive::entries(&*store, at);
        let mut next = Ok(Bytes::from(first));
        loop {
            let failed = next.is_err();
            if send.send(next).await.is_err() || failed {
                return;
            }
            next = match pages.next().await {
                Some(Ok(page)) => Ok(page.iter().flat_map(|entry| writer.entry(entry)).collect()),
                // The file ends without its end, which its reader sees.
                Some(Err(error)) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a backup broke off");
                    Err(std::io::Error::other(error))
                }
                None => break,
            };
        }
        let _gone = send.send(Ok(Bytes::from(writer.end()))).await;
    });
    let body = stream::unfold(lines, |mut lines| async move { Some((lines.recv().await?, lines)) });
    let kind = [(header::CONTENT_TYPE, "application/jsonl")];
    Ok((kind, Body::from_stream(body)).into_response())
}
