//! Join tokens: what a new node is given, and what it proves with.
use std::fmt;
use std::str::FromStr;

use super::validate::is_subdomain;

/// What tells a join token from other long words.
const PREFIX: &str = "wfl1";
/// Characters of a SHA-256 in hexadecimal.
const HASH: usize = 64;

/// A join token: `wfl1<SHA-256 of the server's authority>::<id>.<secret>`.
///
/// No `Debug`: the secret is one.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// SHA-256 of the serving authority's certificate, in hexadecimal: by it the joiner knows the server.
    pub authority: String,
    /// The name under which the server keeps it.
    pub id: String,
    /// What only its holder knows.
    pub secret: String,
}

/// Why a text is no join token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no join token; get one with `wharfline token create`")]
pub struct NoToken;

impl JoinToken {
    /// What is sent to the server once it is known.
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}::{}.{}", self.authority, self.id, self.secret)
    }
}

impl FromStr for JoinToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, NoToken> {
        let (authority, bearer) =
            text.trim().strip_prefix(PREFIX).and_then(|rest| rest.split_once("::")).ok_or(NoToken)?;
        let (id, secret) = bearer_parts(bearer).ok_or(NoToken)?;
        let hash = authority.len() == HASH && authority.bytes().all(|b| b.is_ascii_hexdigit());
        if !hash {
            return Err(NoToken);
        }
        Ok(Self { authority: authority.to_ascii_lowercase(), id: id.to_owned(), secret: secret.to_owned() })
    }
}

/// The type of the Secrets that make somebody a user.
pub const USER_TYPE: &str = "wharfline.dev/user";
/// What stands before a user's name in the name of its Secret.
pub const USER_PREFIX: &str = "user-";
/// The longest name of a user.
pub const LONGEST_USER: usize = 58;
/// What tells a user's token from other long words.
const USER_TOKEN: &str = "wflu1";

/// A user's token: `wflu1.<name>.<secret>`.
///
/// The server keeps the SHA-256 of the secret in base 64; as the secret is random, it cannot be guessed from that. No
/// `Debug`: the secret is one.
#[derive(Clone, PartialEq, Eq)]
pub struct UserToken {
    /// The user.
    pub name: String,
    /// What only the user knows.
    pub secret: String,
}

impl fmt::Display for UserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{USER_TOKEN}.{}.{}", self.name, self.secret)
    }
}

impl FromStr for UserToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, NoToken> {
        let rest = text.strip_prefix(USER_TOKEN).and_then(|rest| rest.strip_prefix('.')).ok_or(NoToken)?;
        let (name, secret) = rest.split_once('.').ok_or(NoToken)?;
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if name.contains('.') || !is_subdomain(name, LONGEST_USER) || !plain(secret) || secret.len() > HASH {
            return Err(NoToken);
        }
        Ok(Self { name: name.to_owned(), secret: secret.to_owned() })
    }
}

/// Id and secret of what a joiner sends.
pub fn bearer_parts(bearer: &str) -> Option<(&str, &str)> {
    let (id, secret) = bearer.split_once('.')?;
    let plain = |text: &str| {
        !text.is_empty()
            && text.len() <= HASH
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    (plain(id) && plain(secret)).then_some((id, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let hash = "0f".repeat(32);
        let token = JoinToken { authority: hash.clone(), id: "abc123".into(), secret: "x".repeat(40) };
        assert!(token.to_string().parse::<JoinToken>().is_ok_and(|read| read == token));
        assert!(format!(" {token}\n").parse::<JoinToken>().is_ok_and(|read| read == token));
        assert_eq!(bearer_parts(&token.bearer()), Some(("abc123", token.secret.as_str())));
        for wrong in [
            String::new(),
            format!("wfl1{hash}"),
            format!("wfl1{hash}::abc"),
            format!("wfl1{hash}::.x"),
            format!("wfl1{hash}::a."),
            format!("wfl1{}::a.b", &hash[2..]),
            format!("wfl2{hash}::a.b"),
            format!("wfl1{hash}::../a.b"),
            format!("wfl1{}::a.b", "z".repeat(64)),
        ] {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }
}
