//! `user`: who may speak to the API beside the administrator, and with which role.
//!
//! A user is a Secret of the system namespace with a role, an end, and the hash of a token that only its owner has.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use jiff::Timestamp;
use ring::rand::SecureRandom as _;
use serde_json::{Value, json};

use crate::api::token::{LONGEST_USER, USER_PREFIX, USER_TYPE, UserToken};
use crate::api::validate::is_subdomain;
use crate::cli::args::{User, UserCommand};
use crate::cli::failure::{Exit, Failure};
use crate::cli::session::Session;
use crate::cli::wire::{Form, content};
use crate::cli::{age, kubeconfig, manifest, table};

const SECRETS: &str = "/api/v1/namespaces/wharfline-system/secrets";

pub(crate) async fn run(session: &mut Session<'_>, args: &User) -> Result<(), Failure> {
    match &args.command {
        UserCommand::Create { name, role, ttl } => create(session, name, (role.word(), *ttl)).await,
        UserCommand::List => list(session).await,
        UserCommand::Delete { name } => delete(session, name).await,
    }
}

async fn create(
    session: &mut Session<'_>,
    name: &str,
    (role, ttl): (&str, std::time::Duration),
) -> Result<(), Failure> {
    if name.contains('.') || !is_subdomain(name, LONGEST_USER) {
        let what = format!("\"{name}\" is no user name: 1 to {LONGEST_USER} of a-z, 0-9 and '-'");
        return Err(Failure::usage(what));
    }
    let mut secret = [0; 24];
    let random = ring::rand::SystemRandom::new();
    random.fill(&mut secret).map_err(|_| Failure::failed("the system gave no random bytes"))?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let hash = STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, secret.as_bytes()));
    let token = UserToken { name: name.to_owned(), secret };
    let expires = Timestamp::now().checked_add(ttl).map_err(|_| Failure::usage("--ttl is too long"))?;
    let file = kubeconfig::for_user(&session.kubeconfig()?, name, &token.to_string())?;
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": USER_TYPE,
        "metadata": { "name": format!("{USER_PREFIX}{name}") },
        "stringData": { "hash": hash, "role": role, "expires": expires.to_string() },
    });
    let sent = session.wire.send(Method::POST, SECRETS, Some((content::JSON, &object)), Form::Object).await;
    sent.map_err(|failure| match failure.exit {
        Exit::Conflict => Failure::new(Exit::Conflict, format!("there is a user \"{name}\" already"))
            .try_this(format!("to give it another token or role, first `wharfline user delete {name}`")),
        _ => failure,
    })?;
    let text = manifest::to_yaml(&file);
    session.say(text.trim_end())
}

async fn list(session: &mut Session<'_>) -> Result<(), Failure> {
    let of_users = format!("type={USER_TYPE}");
    let users = session.wire.list(SECRETS, &[("fieldSelector", &of_users)], Form::Object).await?;
    let now = Timestamp::now();
    let rows: Vec<Vec<String>> =
        users["items"].as_array().into_iter().flatten().map(|u| row(u, now)).collect();
    if rows.is_empty() {
        session.note("No users; make one with `wharfline user create NAME --role view`.");
        return Ok(());
    }
    table::print(session.terminal.out, &["NAME", "ROLE", "EXPIRES", "AGE"], &rows)?;
    Ok(())
}

fn row(user: &Value, now: Timestamp) -> Vec<String> {
    let field = |name: &str| {
        let bytes = user["data"][name].as_str().and_then(|text| STANDARD.decode(text).ok());
        bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
    };
    let name = user["metadata"]["name"].as_str().unwrap_or_default();
    let expires = match field("expires").parse::<Timestamp>() {
        Ok(expires) if expires <= now => "expired".to_owned(),
        Ok(expires) => format!("in {}", age::seconds(expires.duration_since(now).as_secs())),
        Err(_) => "unreadable, so it is refused".to_owned(),
    };
    let age = age::since(age::time_of(&user["metadata"]["creationTimestamp"]), now);
    vec![name.strip_prefix(USER_PREFIX).unwrap_or(name).to_owned(), field("role"), expires, age]
}

async fn delete(session: &mut Session<'_>, name: &str) -> Result<(), Failure> {
    let path = format!("{SECRETS}/{USER_PREFIX}{name}");
    let sent = session.wire.send(Method::DELETE, &path, None, Form::Object).await;
    sent.map_err(|failure| match failure.exit {
        Exit::NotFound => Failure::new(Exit::NotFound, format!("there is no user \"{name}\"")),
        _ => failure,
    })?;
    session.say(format_args!("user \"{name}\" deleted; its token is refused from now on"))
}
