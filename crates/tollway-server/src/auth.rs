//! Who may do what: tokens with roles.
//!
//! Without tokens everybody may do everything, which is why the service then listens on loopback
//! only. A token is compared with every known one in constant time, so that neither its bytes nor
//! which of them matched can be learnt from how long it takes. Tokens are never printed.

mod wrong;

use std::fmt;
use std::path::PathBuf;

use subtle::ConstantTimeEq;
use tollway_core::named_enum;

pub(crate) use wrong::{Refused, WrongTokens};

named_enum! {
    /// What a token permits. Each role includes those before it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Role {
        /// Look: peek, metrics, readiness detail.
        Read = "read",
        /// Decide: check, refund, reserve, commit, cancel.
        Check = "check",
        /// Everything: reset, reload, top keys.
        Admin = "admin",
    }
}

/// The tokens that are known.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Auth {
    tokens: Vec<(Box<[u8]>, Role)>,
    files: Vec<PathBuf>,
}

impl Auth {
    /// Adds a token; an empty one is ignored, since it would let everybody in.
    pub fn add(&mut self, token: &str, role: Role) {
        if !token.is_empty() {
            self.tokens.push((token.as_bytes().into(), role));
        }
    }

    /// Notes a file from which a token was read, to be looked at when it changes.
    pub(crate) fn add_file(&mut self, file: impl Into<PathBuf>) {
        self.files.push(file.into());
    }

    /// The files from which tokens were read.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Whether no token is needed.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The role of somebody who has shown no token.
    pub(crate) fn role_without_token(&self) -> Option<Role> {
        self.is_open().then_some(Role::Admin)
    }

    /// The role that `token` gives; of equal tokens, the highest.
    pub(crate) fn role(&self, token: &[u8]) -> Option<Role> {
        if self.is_open() {
            return Some(Role::Admin);
        }
        let mut found = None;
        for (known, role) in &self.tokens {
            // No early exit: the time must not tell which token matched.
            if bool::from(known.ct_eq(token)) {
                found = found.max(Some(*role));
            }
        }
        found
    }

    /// The role of a request with this `Authorization` field.
    pub(crate) fn role_of_field(&self, authorization: Option<&[u8]>) -> Option<Role> {
        let Some(field) = authorization else { return self.role_without_token() };
        let (scheme, token) = field.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return self.role_without_token();
        }
        self.role(token.trim_ascii())
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({} tokens)", self.tokens.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth() -> Auth {
        let mut auth = Auth::default();
        auth.add("reader", Role::Read);
        auth.add("boss", Role::Admin);
        auth.add("", Role::Admin);
        auth
    }

    #[test]
    fn a_token_gives_its_role_and_a_wrong_one_nothing() {
        let auth = auth();
        assert_eq!(auth.role(b"reader"), Some(Role::Read));
        assert_eq!(auth.role_of_field(Some(b"Bearer boss")), Some(Role::Admin));
        assert_eq!(auth.role_of_field(Some(b"bearer  reader ")), Some(Role::Read));
        for field in
            [None, Some(&b"Bearer "[..]), Some(b"Bearer bos"), Some(b"Basic boss"), Some(b"x")]
        {
            assert_eq!(auth.role_of_field(field), None, "{field:?}");
        }
    }

    #[test]
    fn without_tokens_everybody_may_do_everything() {
        assert_eq!(Auth::default().role_of_field(None), Some(Role::Admin));
        assert_eq!(Auth::default().role(b"anything"), Some(Role::Admin));
    }

    #[test]
    fn tokens_are_never_printed() {
        assert_eq!(format!("{:?}", auth()), "Auth(2 tokens)");
    }
}
