//! `MULTI`, `EXEC`, `DISCARD`: commands queued and answered together, as clients' pipelines send
//! them.
//!
//! ```text
//!   MULTI                -> OK
//!   TOLL.CHECK api ada   -> QUEUED, nothing is taken
//!   TOLL.CHEKC api ada   -> an error, and EXEC will refuse them all
//!   EXEC                 -> the replies in order; each unit is taken once
//! ```
//!
//! What cannot be asked is refused when it is sent, before anything is taken: an unknown command or
//! policy, an argument that is not valid, a role that does not suffice. The commands of a
//! transaction are independent: between two of them others may ask, and one that is denied holds up
//! none of the rest. Charges that belong together are one `TOLL.CHECK`. `WATCH` is refused, since
//! there is nothing here that a client reads, compares and writes.

use tollway_http::RoomGuard;

use super::batch::unknown;
use super::operations::{Arguments, verb_named};
use super::own_quotas::QuotaCommand;
use super::session::Session;
use super::throttle::ThrottleCommand;
use crate::auth::Role;
use crate::rules::Rules;
use crate::worker::Worker;

/// What an argument takes beside its bytes.
const ARGUMENT_BYTES: usize = 32;

/// Commands that are queued.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    commands: Vec<Vec<Box<[u8]>>>,
    bytes: usize,
    /// Their part of what all connections may hold.
    held: Option<RoomGuard>,
    /// Whether one of them was refused.
    aborted: bool,
}

/// A command about a transaction itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionCommand {
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

impl TransactionCommand {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        const NAMES: [(&str, TransactionCommand); 5] = [
            ("MULTI", TransactionCommand::Multi),
            ("EXEC", TransactionCommand::Exec),
            ("DISCARD", TransactionCommand::Discard),
            ("WATCH", TransactionCommand::Watch),
            ("UNWATCH", TransactionCommand::Unwatch),
        ];
        let found = NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        found.map(|(_, command)| *command)
    }
}

impl Transaction {
    /// Queues a command; the text of the error if it is refused, and then all will be.
    pub(super) fn queue(
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
        match &self.held {
            Some(held) => held.extend(bytes as u64),
            None => {
                self.held = worker.service.room().enter(bytes as u64);
                self.held.is_some()
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
    let not_permitted = |role| session.refusal(role).map(str::to_owned);
    if let Some(command) = ThrottleCommand::named(name) {
        return not_permitted(Role::Check).or_else(|| command.parse(args, worker).err());
    }
    if let Some(verb) = verb_named(name) {
        let wrong = || match Arguments::parse(verb, rest, worker) {
            Ok(arguments) => arguments.operation(verb, rules, worker).err(),
            Err(text) => Some(text),
        };
        return not_permitted(verb.role()).or_else(wrong);
    }
    // These change how the replies that follow are to be read.
    let changes_session = [&b"HELLO"[..], b"AUTH"];
    // And these change what those that follow are decided by.
    let changes_rules = QuotaCommand::named(name).is_some();
    if changes_rules || changes_session.iter().any(|known| name.eq_ignore_ascii_case(known)) {
        return Some("ERR Command not allowed inside a transaction".to_owned());
    }
    let is_known = session.is_command(name)
        || TransactionCommand::named(name) == Some(TransactionCommand::Unwatch);
    (!is_known).then(|| unknown(name))
}
