//! `token create`: what a machine joins a cluster with.
use http::Method;
use serde_json::json;

use crate::cli::args::{Token, TokenCommand};
use crate::cli::failure::Failure;
use crate::cli::session::Session;
use crate::cli::wire::{Form, content};

pub(crate) async fn run(session: &mut Session<'_>, args: &Token) -> Result<(), Failure> {
    let TokenCommand::Create { ttl, node } = &args.command;
    let mut wish = json!({ "ttlSeconds": ttl.as_secs() });
    if let Some(node) = node {
        wish["node"] = json!(node);
    }
    let body = Some((content::JSON, &wish));
    let answer = session.wire.send(Method::POST, "/bootstrap/v1/tokens", body, Form::Object).await?;
    let token = answer.body["token"].as_str().unwrap_or_default().to_owned();
    session.say(token)
}
