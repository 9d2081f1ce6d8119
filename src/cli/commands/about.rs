//! `version` and `api-resources`: what this program and the server are.
use std::io::Write;

use serde_json::{Value, json};

use crate::cli::args::{ApiResources, Version};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::session::{Session, Terminal};
use crate::cli::table::Printer;
use crate::cli::wire::Form;

/// This program's version.
pub(crate) const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

pub(crate) async fn version(session: &mut Session<'_>, args: &Version) -> Result<(), Failure> {
    let server = session.wire.get("/version", Form::Object).await;
    print_version(session.terminal.out, args, server.as_ref().ok())?;
    server.map(|_| ())
}

/// `version --client`, which needs no server and no kubeconfig.
pub(crate) fn client_version(args: &Version, terminal: &mut Terminal<'_>) -> Exit {
    match print_version(terminal.out, args, None) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            writeln!(terminal.err, "{failure}").ok();
            failure.exit
        }
    }
}

fn print_version(out: &mut dyn Write, args: &Version, server: Option<&Value>) -> Result<(), Failure> {
    let output = Output::of_change(args.output.as_deref())?;
    if !output.is_table() {
        let mut value = json!({ "clientVersion": { "gitVersion": VERSION } });
        if let Some(server) = server {
            value["serverVersion"] = server.clone();
        }
        return output.print(out, &value, &|_| String::new());
    }
    writeln!(out, "Client Version: {VERSION}")?;
    if let Some(server) = server {
        writeln!(out, "Server Version: {}", server["gitVersion"].as_str().unwrap_or("unknown"))?;
    }
    Ok(())
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
