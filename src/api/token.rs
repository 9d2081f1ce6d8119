//! Join tokens: what a new node is given, and what it proves with.
use std::fmt;
use std::str::FromStr;

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
