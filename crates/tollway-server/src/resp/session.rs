//! What a connection remembers, and the commands by which real clients greet a server.
//!
//! `HELLO`, `AUTH`, `CLIENT`, `COMMAND`, `PING`, `ECHO`, `INFO`, `SELECT 0`, `QUIT`, `RESET`. They
//! answer what redis-cli, redis-py, ioredis, node-redis and the `redis` crate check for when they
//! connect; nothing else about a Redis server is pretended.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::encode::{Encoder, Version};
use super::transaction::Transaction;
use crate::auth::{Auth, Refused, Role};
use crate::front::Front;
use crate::operation::Verb;
use crate::rules::Rules;
use crate::worker::Worker;

/// What a connection remembers between commands.
pub(super) struct Session {
    id: u64,
    peer: IpAddr,
    version: Version,
    /// The tokens by which the client was judged, and the one that it has shown.
    auth: Arc<Auth>,
    token: Option<Token>,
    role: Option<Role>,
    name: Vec<u8>,
    closing: bool,
    wrong_tokens: u32,
    transaction: Option<Transaction>,
}

/// A token that was right when it was shown. It has no `Debug`: it must never be printed.
struct Token(Box<[u8]>);

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What clients that look at the version take for a server that speaks RESP3.
const REDIS_VERSION: &str = "7.4.0";
const CLIENT_NAME_BYTES_MAX: usize = 256;
/// Wrong tokens after which a connection is closed.
const WRONG_TOKENS_MAX: u32 = 3;
const NOAUTH: &str = "NOAUTH Authentication required.";
const NOPERM: &str = "NOPERM this token has no permission to run the command";
const COMMANDS: [&str; 10] =
    ["HELLO", "AUTH", "CLIENT", "COMMAND", "PING", "ECHO", "INFO", "SELECT", "QUIT", "RESET"];

impl Session {
    /// A connection that has said nothing yet.
    pub(super) fn new(id: u64, peer: IpAddr, worker: &Worker) -> Self {
        let auth = Arc::clone(&worker.service.auth());
        let (role, token) = (auth.role_without_token(), None);
        let (version, name) = (Version::Two, Vec::new());
        let (closing, wrong_tokens, transaction) = (false, 0, None);
        Self { id, peer, version, auth, token, role, name, closing, wrong_tokens, transaction }
    }

    /// Judges the client by the tokens in force, if those have changed: a token that was taken back
    /// permits nothing any more, on whatever connection it was shown.
    pub(super) fn judge_by_current_tokens(&mut self, worker: &Worker) {
        let in_force = worker.service.auth();
        if Arc::ptr_eq(&self.auth, &in_force) {
            return;
        }
        self.auth = Arc::clone(&in_force);
        self.role = match &self.token {
            Some(token) => in_force.role(&token.0),
            None => in_force.role_without_token(),
        };
    }

    /// The protocol version in use.
    pub(super) const fn version(&self) -> Version {
        self.version
    }

    /// Whether the client has said goodbye.
    pub(super) const fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether the client has shown a token, or needs none.
    pub(super) const fn is_known(&self) -> bool {
        self.role.is_some()
    }

    /// Whose token the client has shown, for the log.
    pub(super) fn who(&self) -> String {
        self.auth.name_of(self.token.as_ref().map(|token| &*token.0)).to_owned()
    }

    /// Whether the client may do what needs `role`.
    pub(super) fn may(&self, role: Role) -> bool {
        self.role >= Some(role)
    }

    /// Where the client is.
    pub(super) const fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Why the client may not do what needs `role`, if it may not.
    pub(super) fn refusal(&self, role: Role) -> Option<&'static str> {
        match self.role {
            None => Some(NOAUTH),
            Some(has) if has < role => Some(NOPERM),
            Some(_) => None,
        }
    }

    /// Why the client may not change what others are told, if it may not: what is open to everybody
    /// on this machine changes nothing for good.
    pub(super) fn refusal_to_change(&self) -> Option<&'static str> {
        let open =
            self.auth.is_open().then_some("NOPERM changes need a token: serve with TOLLWAY_TOKEN");
        self.refusal(Role::Admin).or(open)
    }

    /// Whether commands are queued until `EXEC`.
    pub(super) const fn is_in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Whether a command is answered at once even in a transaction: it ends more than that.
    pub(super) fn is_immediate(name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(b"QUIT") || name.eq_ignore_ascii_case(b"RESET")
    }

    /// From now on commands are queued.
    pub(super) fn begin_transaction(&mut self) {
        self.transaction = Some(Transaction::default());
    }

    /// From now on commands are answered at once; what was queued until then.
    pub(super) fn take_transaction(&mut self) -> Option<Transaction> {
        self.transaction.take()
    }

    /// Queues a command; the text of the error if it is refused.
    pub(super) fn queue(
        &mut self,
        args: &[&[u8]],
        worker: &Worker,
        rules: &Rules,
    ) -> Result<(), String> {
        let mut transaction = self.transaction.take().unwrap_or_default();
        let outcome = transaction.queue(args, self, worker, rules);
        self.transaction = Some(transaction);
        outcome
    }

    /// Whether `name` is one of the commands answered here.
    pub(super) fn is_command(&self, name: &[u8]) -> bool {
        COMMANDS.iter().any(|command| name.eq_ignore_ascii_case(command.as_bytes()))
    }

    /// Answers one of the commands.
    pub(super) fn apply(
        &mut self,
        name: &[u8],
        args: &[&[u8]],
        worker: &Worker,
        out: &mut Vec<u8>,
    ) {
        let name = name.to_ascii_uppercase();
        let open = [&b"HELLO"[..], b"AUTH", b"QUIT", b"RESET"];
        let mut encoder = Encoder::new(out, self.version);
        if self.role.is_none() && !open.contains(&&*name) {
            return encoder.error(NOAUTH);
        }
        match (&*name, &args[1..]) {
            (b"PING", []) => encoder.simple("PONG"),
            (b"PING" | b"ECHO", [message]) => encoder.bulk(message),
            (b"HELLO", rest) => self.hello(rest, worker, out),
            (b"AUTH", [token] | [_, token]) => self.auth(token, worker, &mut encoder),
            (b"CLIENT", [what, rest @ ..]) => self.client(what, rest, &mut encoder),
            (b"COMMAND", rest) => command(rest, &mut encoder),
            (b"INFO", _) => encoder.bulk(info(worker).as_bytes()),
            (b"SELECT", [b"0"]) => encoder.simple("OK"),
            (b"SELECT", [_]) => encoder.error("ERR DB index is out of range"),
            (b"QUIT", _) => {
                self.closing = true;
                encoder.simple("OK");
            }
            (b"RESET", []) => self.reset(worker, out),
            _ => {
                let name = String::from_utf8_lossy(&name).to_lowercase();
                encoder.error(&format!("ERR wrong number of arguments for '{name}' command"));
            }
        }
    }

    fn hello(&mut self, args: &[&[u8]], worker: &Worker, out: &mut Vec<u8>) {
        let mut greeting = Encoder::new(out, self.version);
        let (version, mut rest) = match args {
            [] => (self.version, args),
            [b"2", rest @ ..] => (Version::Two, rest),
            [b"3", rest @ ..] => (Version::Three, rest),
            _ => return greeting.error("NOPROTO unsupported protocol version"),
        };
        while let [option, after @ ..] = rest {
            rest = match (option.to_ascii_uppercase().as_slice(), after) {
                (b"AUTH", [_, token, after @ ..]) => {
                    let role = self.auth.role(token);
                    if role.is_none() {
                        return self.wrong_token(worker, &mut greeting);
                    }
                    (self.role, self.token) = (role, Some(Token((*token).into())));
                    after
                }
                (b"SETNAME", [name, after @ ..]) => {
                    self.rename(name);
                    after
                }
                _ => return greeting.error("ERR syntax error in HELLO"),
            };
        }
        if self.role.is_none() {
            return greeting.error(NOAUTH);
        }
        self.version = version;
        greet(self.id, &mut Encoder::new(out, version));
    }

    fn auth(&mut self, token: &[u8], worker: &Worker, encoder: &mut Encoder<'_>) {
        if self.auth.is_open() {
            return encoder.error("ERR AUTH called without any token configured");
        }
        match self.auth.role(token) {
            Some(role) => {
                (self.role, self.token) = (Some(role), Some(Token(token.into())));
                encoder.simple("OK");
            }
            // The role shown before is kept, as Redis keeps the user.
            None => self.wrong_token(worker, encoder),
        }
    }

    /// Refuses a token. Who has shown too many is answered and parted from: each guess then costs a
    /// connection.
    fn wrong_token(&mut self, worker: &Worker, encoder: &mut Encoder<'_>) {
        self.wrong_tokens += 1;
        let refused = worker.service.wrong_token(self.peer, Front::Resp);
        let is_flood = matches!(refused, Refused::TooMany { .. });
        self.closing |= is_flood || self.wrong_tokens >= WRONG_TOKENS_MAX;
        encoder.error(WRONGPASS);
    }

    fn client(&mut self, what: &[u8], rest: &[&[u8]], encoder: &mut Encoder<'_>) {
        match (what.to_ascii_uppercase().as_slice(), rest) {
            (b"ID", []) => encoder.unsigned(self.id),
            (b"SETNAME", [name]) => {
                self.rename(name);
                encoder.simple("OK");
            }
            (b"GETNAME", []) if self.name.is_empty() => encoder.null(),
            (b"GETNAME", []) => encoder.bulk(&self.name),
            (b"SETINFO", [_, _]) | (b"NO-EVICT" | b"NO-TOUCH", [_]) => encoder.simple("OK"),
            (b"INFO", []) => encoder.bulk(format!("id={} name=", self.id).as_bytes()),
            _ => encoder.error("ERR unknown subcommand or wrong number of arguments for CLIENT"),
        }
    }

    fn rename(&mut self, name: &[u8]) {
        self.name = name[..name.len().min(CLIENT_NAME_BYTES_MAX)].to_vec();
    }

    fn reset(&mut self, worker: &Worker, out: &mut Vec<u8>) {
        // Not the wrong tokens: a guess would be free after every RESET.
        *self = Self { wrong_tokens: self.wrong_tokens, ..Self::new(self.id, self.peer, worker) };
        Encoder::new(out, self.version).simple("RESET");
    }
}

const WRONGPASS: &str = "WRONGPASS invalid token";

fn greet(id: u64, encoder: &mut Encoder<'_>) {
    encoder.map(7);
    for (name, value) in [("server", "tollway"), ("version", REDIS_VERSION)] {
        encoder.bulk(name.as_bytes());
        encoder.bulk(value.as_bytes());
    }
    encoder.bulk(b"proto");
    encoder.integer(if encoder.version() == Version::Three { 3 } else { 2 });
    encoder.bulk(b"id");
    encoder.unsigned(id);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        encoder.bulk(name.as_bytes());
        encoder.bulk(value.as_bytes());
    }
    encoder.bulk(b"modules");
    encoder.array(0);
}

/// Name, arity, flag, and first key, last key, step: what cluster-aware clients route by.
type CommandEntry<'a> = (Cow<'a, str>, i64, &'static str, [i64; 3]);

/// The commands that are told to clients, beside the verbs.
const TOLD: [(&str, i64, &str, [i64; 3]); 13] = [
    ("toll.setquota", -4, "write", [2, 2, 1]),
    ("toll.getquota", 3, "readonly", [2, 2, 1]),
    ("toll.delquota", 3, "write", [2, 2, 1]),
    ("toll.quotas", -2, "readonly", [0, 0, 0]),
    ("toll.grant", -4, "write", [2, 2, 1]),
    ("cl.throttle", -5, "write", [1, 1, 1]),
    ("throttle", -5, "write", [1, 1, 1]),
    ("gcra", -5, "write", [1, 1, 1]),
    ("ping", -1, "fast", [0, 0, 0]),
    ("hello", -1, "fast", [0, 0, 0]),
    ("multi", 1, "fast", [0, 0, 0]),
    ("exec", 1, "fast", [0, 0, 0]),
    ("discard", 1, "fast", [0, 0, 0]),
];

/// Every command that is told to clients.
fn entries() -> impl Iterator<Item = CommandEntry<'static>> {
    let verbs = Verb::TABLE.into_iter().map(|(verb, name, role)| {
        let (arity, keys) = match verb {
            Verb::Commit => (-2, [0; 3]),
            Verb::Cancel => (2, [0; 3]),
            Verb::Reset => (3, [2, 2, 1]),
            _ => (-3, [2, 2, 1]),
        };
        let flag = if role == Role::Read { "readonly" } else { "write" };
        (format!("toll.{name}").into(), arity, flag, keys)
    });
    TOLD.into_iter().map(|(name, arity, flag, keys)| (name.into(), arity, flag, keys)).chain(verbs)
}

fn command(args: &[&[u8]], encoder: &mut Encoder<'_>) {
    match args {
        [] => {
            encoder.array(entries().count());
            entries().for_each(|entry| command_entry(&entry, encoder));
        }
        [what] if what.eq_ignore_ascii_case(b"COUNT") => {
            encoder.unsigned(entries().count() as u64);
        }
        [what, names @ ..] if what.eq_ignore_ascii_case(b"INFO") => {
            encoder.array(names.len());
            for name in names {
                let is_it =
                    |entry: &CommandEntry<'_>| name.eq_ignore_ascii_case(entry.0.as_bytes());
                match entries().find(is_it) {
                    Some(entry) => command_entry(&entry, encoder),
                    None => encoder.null(),
                }
            }
        }
        // redis-cli asks for DOCS to help while typing, and makes do without.
        _ => encoder.map(0),
    }
}

fn command_entry((name, arity, flag, keys): &CommandEntry<'_>, encoder: &mut Encoder<'_>) {
    encoder.array(6);
    encoder.bulk(name.as_bytes());
    encoder.integer(*arity);
    encoder.array(1);
    encoder.simple(flag);
    keys.iter().for_each(|&key| encoder.integer(key));
}

fn info(worker: &Worker) -> String {
    let service = &worker.service;
    let keys = service.enforcer.memory().map_or(0, |memory| memory.pressure().used);
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\ntollway_version:{VERSION}\r\n\
         redis_mode:standalone\r\nprocess_id:{}\r\nloading:0\r\n\
         # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
         # Keyspace\r\ndb0:keys={keys},expires={keys},avg_ttl=0\r\n",
        std::process::id()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_told_to_clients_that_route_by_keys() {
        let told: Vec<_> = entries().map(|entry| entry.0).collect();
        for (_, name, _) in Verb::TABLE {
            assert!(told.contains(&format!("toll.{name}").into()), "{name}");
        }
        assert_eq!(told.len(), TOLD.len() + Verb::TABLE.len());
    }
}
