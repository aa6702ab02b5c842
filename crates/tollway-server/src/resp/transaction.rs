//! `MULTI`, `EXEC`, `DISCARD`: commands put by and answered together, as clients' pipelines send them.
//!
//! ```text
//!   MULTI                -> OK
//!   TOLL.CHECK api ada   -> QUEUED, nothing is taken
//!   TOLL.CHEKC api ada   -> an error, and EXEC will refuse them all
//!   EXEC                 -> the replies in order; each unit is taken once
//! ```
//!
//! What cannot be asked is refused when it is sent, before anything is taken: an unknown command or
//! policy, an argument that does not read, a role that does not suffice. The commands of a transaction
//! are independent: between two of them others may ask, and one that is denied holds up none of the
//! rest. Charges that belong together are one `TOLL.CHECK`. `WATCH` is refused, since there is nothing
//! here that a client reads, compares and writes.

use tollway_http::Place;

use super::batch::unknown;
use super::check::asks;
use super::session::Session;
use super::throttle::Dialect;
use super::{check, settle, verbs};
use crate::auth::Role;
use crate::rules::Rules;
use crate::worker::Worker;

/// What an argument takes beside its bytes.
const ARGUMENT_BYTES: usize = 32;

/// Commands put by.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    commands: Vec<Vec<Box<[u8]>>>,
    bytes: usize,
    /// Their part of what all connections may hold.
    place: Option<Place>,
    /// Whether one of them was refused.
    aborted: bool,
}

/// What is about a transaction itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// `MULTI`.
    Multi,
    /// `EXEC`.
    Exec,
    /// `DISCARD`.
    Discard,
    /// `WATCH`.
    Watch,
    /// `UNWATCH`.
    Unwatch,
}

impl Verb {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        let is = |command: &[u8]| name.eq_ignore_ascii_case(command);
        match () {
            () if is(b"MULTI") => Some(Self::Multi),
            () if is(b"EXEC") => Some(Self::Exec),
            () if is(b"DISCARD") => Some(Self::Discard),
            () if is(b"WATCH") => Some(Self::Watch),
            () if is(b"UNWATCH") => Some(Self::Unwatch),
            () => None,
        }
    }
}

impl Transaction {
    /// Puts a command by; the text of the error if it is refused, and then all will be.
    pub(super) fn put(
        &mut self,
        args: &[&[u8]],
        session: &Session,
        worker: &Worker,
        rules: &Rules,
    ) -> Result<(), String> {
        let limits = &worker.service.settings().limits;
        let bytes = args.iter().map(|arg| arg.len() + ARGUMENT_BYTES).sum::<usize>();
        let refused = if self.commands.len() == limits.pipeline_max {
            Some(format!("ERR more than {} commands in one transaction", limits.pipeline_max))
        } else if self.bytes + bytes > limits.frame_bytes_max {
            Some(format!("ERR a transaction is longer than {} bytes", limits.frame_bytes_max))
        } else if !self.aborted && !self.hold(bytes, worker) {
            Some("ERR too much is held for unfinished requests".to_owned())
        } else {
            refusal(args, session, worker, rules)
        };
        if let Some(text) = refused {
            *self = Self { aborted: true, ..Self::default() };
            return Err(text);
        }
        if !self.aborted {
            self.bytes += bytes;
            self.commands.push(args.iter().map(|&arg| arg.into()).collect());
        }
        Ok(())
    }

    fn hold(&mut self, bytes: usize, worker: &Worker) -> bool {
        match &self.place {
            Some(place) => place.extend(bytes as u64),
            None => {
                self.place = worker.service.room().enter(bytes as u64);
                self.place.is_some()
            }
        }
    }

    /// The commands; `None` if one was refused.
    pub(super) fn commands(self) -> Option<Vec<Vec<Box<[u8]>>>> {
        (!self.aborted).then_some(self.commands)
    }
}

/// Why a command cannot be part of a transaction, if it cannot.
fn refusal(args: &[&[u8]], session: &Session, worker: &Worker, rules: &Rules) -> Option<String> {
    let (&name, rest) = args.split_first()?;
    let charges_max = worker.service.settings().limits.charges_max;
    let not_permitted = |role| session.refusal(role).map(str::to_owned);
    if let Some(dialect) = Dialect::named(name) {
        return not_permitted(Role::Check).or_else(|| dialect.plan(args, worker).err());
    }
    if let Some(kind) = check::Kind::named(name) {
        return not_permitted(kind.role()).or_else(|| asks(rest, rules, charges_max).err());
    }
    if let Some(command) = settle::Command::named(name) {
        let wrong = || command.wrong(args, rules, charges_max);
        return not_permitted(Role::Check).or_else(wrong);
    }
    if let Some(command) = verbs::Command::named(name) {
        return not_permitted(command.role()).or_else(|| asks(rest, rules, 1).err());
    }
    // These change how the replies that follow are to be read.
    let changes_session = [&b"HELLO"[..], b"AUTH"];
    if changes_session.iter().any(|command| name.eq_ignore_ascii_case(command)) {
        return Some("ERR Command not allowed inside a transaction".to_owned());
    }
    let is_known = session.is_command(name) || Verb::named(name) == Some(Verb::Unwatch);
    (!is_known).then(|| unknown(name))
}
