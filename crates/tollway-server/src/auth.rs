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
    tokens: Vec<Known>,
    files: Vec<PathBuf>,
    without_token: Option<Role>,
}

/// A token that is known.
#[derive(Clone, PartialEq, Eq)]
struct Known {
    token: Box<[u8]>,
    role: Role,
    /// Who has it, for the log.
    name: Box<str>,
}

impl Auth {
    /// Adds a token, named after its role and place; an empty one is ignored, since it would let
    /// everybody in.
    pub fn add(&mut self, token: &str, role: Role) {
        let name = format!("{}-{}", role.name(), self.tokens.len() + 1);
        self.add_named(token, role, &name);
    }

    /// Adds a token of somebody; an empty one is ignored.
    pub fn add_named(&mut self, token: &str, role: Role, name: &str) {
        if !token.is_empty() {
            let (token, name) = (token.as_bytes().into(), name.into());
            self.tokens.push(Known { token, role, name });
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

    /// Permits so much to whoever shows no token, whatever tokens are known.
    pub fn permit_without_token(&mut self, role: Role) {
        self.without_token = Some(role);
    }

    /// Whether no token is needed, for anything.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty() && self.without_token.is_none()
    }

    /// The role of somebody who has shown no token.
    pub(crate) fn role_without_token(&self) -> Option<Role> {
        if self.is_open() { Some(Role::Admin) } else { self.without_token }
    }

    /// The role that `token` gives; of equal tokens, the highest.
    pub(crate) fn role(&self, token: &[u8]) -> Option<Role> {
        if self.is_open() {
            return Some(Role::Admin);
        }
        self.find(token).map(|known| known.role)
    }

    /// The token as it is known; of equal ones, that of the highest role.
    fn find(&self, token: &[u8]) -> Option<&Known> {
        let mut found: Option<&Known> = None;
        for known in &self.tokens {
            // No early exit: the time must not tell which token matched.
            let is_it = bool::from(known.token.ct_eq(token));
            if is_it && found.is_none_or(|found| found.role < known.role) {
                found = Some(known);
            }
        }
        found
    }

    /// Who shows the token of this `Authorization` field, for the log.
    pub(crate) fn name_of_field(&self, authorization: Option<&[u8]>) -> &str {
        let token = authorization.and_then(|field| Some(field.split_at_checked(7)?.1));
        self.name_of(token.map(<[u8]>::trim_ascii))
    }

    /// Who shows this token, for the log.
    pub(crate) fn name_of(&self, token: Option<&[u8]>) -> &str {
        let known = token.and_then(|token| self.find(token));
        known.map_or("nobody by name", |known| &known.name)
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
    fn who_has_a_token_is_known_by_name() {
        let mut auth = auth();
        auth.add_named("s3cret", Role::Admin, "ada");
        assert_eq!(auth.name_of_field(Some(b"Bearer s3cret")), "ada");
        assert_eq!(auth.name_of_field(Some(b"Bearer boss")), "admin-2");
        assert_eq!(auth.name_of_field(Some(b"Bearer wrong")), "nobody by name");
        assert_eq!(Auth::default().name_of_field(None), "nobody by name");
    }

    #[test]
    fn without_tokens_everybody_may_do_everything() {
        assert_eq!(Auth::default().role_of_field(None), Some(Role::Admin));
        assert_eq!(Auth::default().role(b"anything"), Some(Role::Admin));
    }

    #[test]
    fn strangers_may_do_what_they_are_permitted_and_no_more() {
        let mut auth = Auth::default();
        auth.permit_without_token(Role::Check);
        assert!(!auth.is_open());
        assert_eq!(auth.role_of_field(None), Some(Role::Check));
        assert_eq!(auth.role_of_field(Some(b"Bearer wrong")), None);
        auth.add("boss", Role::Admin);
        assert_eq!(auth.role_of_field(Some(b"Bearer boss")), Some(Role::Admin));
        assert_eq!(auth.role_of_field(None), Some(Role::Check));
    }

    #[test]
    fn tokens_are_never_printed() {
        assert_eq!(format!("{:?}", auth()), "Auth(2 tokens)");
    }
}
