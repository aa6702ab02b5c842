//! A pipeline as one batch: commands in, replies out, single checks decided together.
//!
//! ```text
//!   CL.THROTTLE  CL.THROTTLE  TOLL.CHECK | PING | CL.THROTTLE        the pipeline
//!   '----------- one run -------------'   alone   '- next run -'
//! ```
//!
//! A run is put to the store as one batch, so that the latencies of its keys overlap. Any other
//! command first ends the run: replies come in order, and a command sees what those before it did.

use std::rc::Rc;

use tollway_core::{Cost, Key, Policy};

use super::encode::Encoder;
use super::operations::{self, Arguments, encode_verdict, failure, verb_named};
use super::own_quotas::QuotaCommand;
use super::parse::{Bounds, Frame, ProtocolError, parse};
use super::session::Session;
use super::throttle::ThrottleCommand;
use super::transaction::{Transaction, TransactionCommand};
use crate::auth::Role;
use crate::client_stream::WRITE_BYTES;
use crate::decide::{Decided, Decider};
use crate::operation::Verb;
use crate::rules::{Ask, Rules};
use crate::wait::Unit;
use crate::worker::Worker;

/// One check of a run.
#[derive(Debug)]
pub(super) enum PendingCheck<'a> {
    /// `TOLL.CHECK` of one charge, times to be told in this unit.
    Named(Ask<'a>, Unit),
    /// A throttle command. Its policy is held here until the run is decided.
    AdHoc { command: ThrottleCommand, policy: Rc<Policy>, key: Key<'a>, cost: Cost },
}

/// How far a batch came.
#[derive(Debug)]
pub(super) struct Progress {
    /// Bytes of the input dealt with.
    pub used: usize,
    /// Whether the input may hold another whole command: the batch was full.
    pub more: bool,
    /// Why the framing is broken, if it is.
    pub broken: Option<ProtocolError>,
}

impl PendingCheck<'_> {
    /// What to ask of the store.
    fn ask<'b>(&'b self, decider: &'b Decider<'_>) -> Ask<'b> {
        match self {
            Self::Named(ask, _) => *ask,
            Self::AdHoc { policy, key, cost, .. } => decider.ask_adhoc(policy, *key, *cost),
        }
    }

    /// Writes the reply.
    fn encode(&self, ask: &Ask<'_>, answer: &Decided, encoder: &mut Encoder<'_>) {
        match (self, answer) {
            (Self::AdHoc { command, .. }, Ok(verdict)) => {
                command.encode(&verdict.decisions()[0], encoder);
            }
            (Self::AdHoc { command, .. }, Err(error)) => {
                encoder.error(&command.error(&error.to_string()));
            }
            (Self::Named(_, unit), Ok(verdict)) => {
                encode_verdict(verdict, std::slice::from_ref(ask), *unit, encoder);
            }
            (Self::Named(..), Err(error)) => encoder.error(&failure(error)),
        }
    }
}

/// Answers the commands at the start of `input`, as many as there are and one batch may hold.
pub(super) async fn answer(
    worker: &Worker,
    session: &mut Session,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Progress {
    let limits = &worker.service.settings().limits;
    let known = Bounds { frame_bytes_max: limits.frame_bytes_max, ..Bounds::default() };
    let stranger = known.for_a_stranger();
    let rules = worker.service.enforcer.rules_at_hand();
    let (run, answers) = Default::default();
    let mut batch = Batch { worker, rules: &rules, run, answers, is_over: false };
    let mut progress = Progress { used: 0, more: true, broken: None };
    let mut args = Vec::with_capacity(8);
    #[cfg(feature = "otlp")]
    let (span, mut commands) =
        (worker.service.traces().and_then(|traces| Some((traces, traces.begin(None)?))), 0);
    for _ in 0..limits.pipeline_max {
        if session.is_closing() || batch.is_over || out.len() >= WRITE_BYTES {
            break;
        }
        let bounds = if session.is_known() { &known } else { &stranger };
        match parse(&input[progress.used..], bounds, &mut args) {
            Ok(Frame::Command { used }) => progress.used += used,
            Ok(Frame::Partial) => {
                progress.more = false;
                break;
            }
            Err(error) => {
                progress.broken = Some(error);
                break;
            }
        }
        batch.command(&args, session, out).await;
        #[cfg(feature = "otlp")]
        {
            commands += 1;
        }
    }
    batch.flush(session, out).await;
    #[cfg(feature = "otlp")]
    if let Some((traces, begun)) = span {
        traces.end(begun, (crate::front::Front::Resp, "RESP batch"), commands, 200);
    }
    progress
}

struct Batch<'a> {
    worker: &'a Worker,
    rules: &'a Rules,
    run: Vec<PendingCheck<'a>>,
    answers: Vec<Decided>,
    /// Whether the rules may have changed, so that what follows is answered by newer ones.
    is_over: bool,
}

impl<'a> Batch<'a> {
    /// Decides as of now: what stands before in the pipeline may have waited for the store.
    fn decider(&self) -> Decider<'a> {
        self.worker.decider(self.rules)
    }

    async fn command(&mut self, args: &[&'a [u8]], session: &mut Session, out: &mut Vec<u8>) {
        let Some(&name) = args.first() else { return };
        if session.is_in_transaction() && !Session::is_immediate(name) {
            return self.queue(args, session, out).await;
        }
        self.now(name, args, session, out).await;
    }

    /// Answers a command that is not queued.
    async fn now(
        &mut self,
        name: &[u8],
        args: &[&'a [u8]],
        session: &mut Session,
        out: &mut Vec<u8>,
    ) {
        if let Some(command) = ThrottleCommand::named(name)
            && session.may(Role::Check)
        {
            return self.throttle(command, args, session, out).await;
        }
        if let Some(verb) = verb_named(name)
            && session.may(verb.role())
        {
            return self.operate(verb, args, session, out).await;
        }
        self.flush(session, out).await;
        if let Some(command) = QuotaCommand::named(name) {
            self.is_over = true;
            if let Err(text) = command.answer(&args[1..], session, self.worker, out).await {
                self.refuse(&text, &mut Encoder::new(out, session.version()));
            }
            return;
        }
        self.alone(name, args, session, out);
    }

    async fn throttle(
        &mut self,
        command: ThrottleCommand,
        args: &[&'a [u8]],
        session: &Session,
        out: &mut Vec<u8>,
    ) {
        let parsed = match command.parse(args, self.worker) {
            Ok((Verb::Check, check)) => return self.run.push(check),
            parsed => parsed,
        };
        self.flush(session, out).await;
        let mut encoder = Encoder::new(out, session.version());
        let (verb, check) = match parsed {
            Ok(parsed) => parsed,
            Err(text) => return self.refuse(&text, &mut encoder),
        };
        let decider = self.decider();
        let ask = check.ask(&decider);
        let answer = match verb {
            Verb::Refund => decider.refund(&ask).await,
            _ => decider.peek(&[ask]).await.map(|verdict| verdict.decisions()[0].snapshot()),
        };
        match answer {
            Ok(snapshot) => command.encode_snapshot(snapshot, ask.charge.policy, &mut encoder),
            Err(error) => encoder.error(&command.error(&error.to_string())),
        }
    }

    async fn operate(
        &mut self,
        verb: Verb,
        args: &[&'a [u8]],
        session: &Session,
        out: &mut Vec<u8>,
    ) {
        if verb == Verb::Check
            && let Some((ask, unit)) = operations::single_check(&args[1..], self.rules)
        {
            return self.run.push(PendingCheck::Named(ask, unit));
        }
        let parsed = Arguments::parse(verb, &args[1..], self.worker);
        self.flush(session, out).await;
        let mut encoder = Encoder::new(out, session.version());
        let arguments = match parsed {
            Ok(arguments) => arguments,
            Err(text) => return self.refuse(&text, &mut encoder),
        };
        let unit = arguments.unit;
        let operation = match arguments.operation(verb, self.rules, self.worker) {
            Ok(operation) => operation,
            Err(text) => return self.refuse(&text, &mut encoder),
        };
        match operation.perform(&self.decider()).await {
            Ok(outcome) => {
                operation.log(|| session.who());
                operations::encode(&outcome, &operation.asks, unit, &mut encoder);
            }
            // Not refused: the command was right, and the store's failure is counted as such.
            Err(error) => encoder.error(&failure(&error)),
        }
    }

    /// Answers a command within a transaction: queues it, or ends the transaction.
    async fn queue(&mut self, args: &[&[u8]], session: &mut Session, out: &mut Vec<u8>) {
        // What came before `MULTI` in the same pipeline is answered before it.
        self.flush(session, out).await;
        let command = args.first().and_then(|name| TransactionCommand::named(name));
        let mut encoder = Encoder::new(out, session.version());
        let refused = match command {
            Some(TransactionCommand::Exec) => return self.exec(session, out).await,
            Some(TransactionCommand::Discard) => {
                session.take_transaction();
                return encoder.simple("OK");
            }
            Some(TransactionCommand::Multi) => Err("ERR MULTI calls can not be nested".to_owned()),
            Some(TransactionCommand::Watch) => {
                Err("ERR WATCH inside MULTI is not allowed".to_owned())
            }
            Some(TransactionCommand::Unwatch) | None => {
                session.queue(args, self.worker, self.rules)
            }
        };
        match refused {
            Ok(()) => encoder.simple("QUEUED"),
            Err(text) => self.refuse(&text, &mut encoder),
        }
    }

    /// Answers what was queued, as one array.
    async fn exec(&mut self, session: &mut Session, out: &mut Vec<u8>) {
        let mut encoder = Encoder::new(out, session.version());
        let Some(commands) = session.take_transaction().and_then(Transaction::commands) else {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return self.refuse(text, &mut encoder);
        };
        encoder.array(commands.len());
        let (worker, rules) = (self.worker, self.rules);
        let (run, answers) = Default::default();
        let mut batch = Batch { worker, rules, run, answers, is_over: false };
        for command in &commands {
            let args: Vec<&[u8]> = command.iter().map(|arg| &**arg).collect();
            batch.now(args[0], &args, session, out).await;
        }
        batch.flush(session, out).await;
    }

    /// Answers what is about transactions outside of one.
    fn outside(
        &self,
        command: TransactionCommand,
        session: &mut Session,
        encoder: &mut Encoder<'_>,
    ) {
        if let Some(text) = session.refusal(Role::Read) {
            return self.refuse(text, encoder);
        }
        match command {
            TransactionCommand::Multi => {
                session.begin_transaction();
                encoder.simple("OK");
            }
            TransactionCommand::Unwatch => encoder.simple("OK"),
            TransactionCommand::Exec => self.refuse("ERR EXEC without MULTI", encoder),
            TransactionCommand::Discard => self.refuse("ERR DISCARD without MULTI", encoder),
            TransactionCommand::Watch => {
                let why = "nothing here is read, compared and written";
                self.refuse(&format!("ERR WATCH is not supported: {why}"), encoder);
            }
        }
    }

    /// Commands that ask nothing of the store, and those that are unknown or not permitted.
    fn alone(&self, name: &[u8], args: &[&[u8]], session: &mut Session, out: &mut Vec<u8>) {
        if session.is_command(name) {
            return session.apply(name, args, self.worker, out);
        }
        let mut encoder = Encoder::new(out, session.version());
        if let Some(command) = TransactionCommand::named(name) {
            return self.outside(command, session, &mut encoder);
        }
        // An unknown command is told as such only to those who may ask.
        let role = verb_named(name).map_or(Role::Check, Verb::role);
        match session.refusal(role) {
            Some(text) => self.refuse(text, &mut encoder),
            None => self.refuse(&unknown(name), &mut encoder),
        }
    }

    /// Decides the run and writes its replies.
    async fn flush(&mut self, session: &Session, out: &mut Vec<u8>) {
        let mut encoder = Encoder::new(out, session.version());
        match &self.run[..] {
            [] => return,
            // Alone, as most clients send them: no list is made of it.
            [item] => {
                let decider = self.decider();
                let ask = item.ask(&decider);
                let answer = decider.check_one(&ask).await;
                item.encode(&ask, &answer, &mut encoder);
            }
            run => {
                let decider = self.decider();
                let asks: Vec<Ask<'_>> = run.iter().map(|item| item.ask(&decider)).collect();
                decider.check_each(&asks, &mut self.answers).await;
                for ((item, ask), answer) in run.iter().zip(&asks).zip(&self.answers) {
                    item.encode(ask, answer, &mut encoder);
                }
            }
        }
        self.run.clear();
    }

    fn refuse(&self, text: &str, encoder: &mut Encoder<'_>) {
        let metrics = self.worker.service.metrics();
        metrics.front(crate::front::Front::Resp).rejected.add(1);
        encoder.error(text);
    }
}

/// That there is no command of this name, which is shown short and on one line.
pub(super) fn unknown(name: &[u8]) -> String {
    format!("ERR unknown command '{}'", name[..name.len().min(64)].escape_ascii())
}
