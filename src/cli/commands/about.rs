//! `version` and `api-resources`: what this program and the server are.
use serde_json::json;

use crate::cli::args::{ApiResources, Version};
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::cli::session::Session;
use crate::cli::table::Printer;
use crate::cli::wire::Form;

/// This program's version.
pub(crate) const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

pub(crate) async fn version(session: &mut Session<'_>, args: &Version) -> Result<(), Failure> {
    let output = Output::of_change(args.output.as_deref())?;
    let server = session.wire.get("/version", Form::Object).await;
    let known = server.as_ref().ok().cloned();
    match output {
        Output::Table { .. } => {
            session.say(format_args!("Client Version: {VERSION}"))?;
            if let Some(server) = &known {
                session.say(format_args!(
                    "Server Version: {}",
                    server["gitVersion"].as_str().unwrap_or("unknown")
                ))?;
            }
        }
        output => {
            let value = json!({ "clientVersion": { "gitVersion": VERSION }, "serverVersion": known });
            output.print(session.terminal.out, &value, &|_| String::new())?;
        }
    }
    server.map(|_| ())
}

pub(crate) async fn api_resources(session: &mut Session<'_>, args: &ApiResources) -> Result<(), Failure> {
    let by_name = Output::parse(args.output.as_deref())? == Output::Name;
    let kinds = session.kinds().await?;
    let mut rows = Vec::new();
    for kind in kinds.all() {
        if by_name {
            let label = kind.full_label("").trim_end_matches('/').to_owned();
            session.say(label.replacen(&kind.singular, &kind.plural, 1))?;
            continue;
        }
        rows.push(vec![
            kind.plural.clone(),
            kind.short_names.iter().filter(|s| !s.is_empty()).cloned().collect::<Vec<_>>().join(","),
            kind.api_version(),
            kind.namespaced.to_string(),
            kind.kind.clone(),
        ]);
    }
    if !by_name {
        let headings = ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"].map(str::to_owned);
        Printer::default().rows(session.terminal.out, &headings, &rows, args.no_headers)?;
    }
    Ok(())
}
