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

use tollway_core::{Charge, Cost, Key, Policy};

use super::check::{self, Asked, Kind};
use super::encode::Encoder;
use super::parse::{Bounds, Frame, ProtocolError, parse};
use super::session::Session;
use super::throttle::{Dialect, Plan};
use super::transaction::{Transaction, Verb};
use super::{settle, verbs};
use crate::auth::Role;
use crate::buffers::WRITE_BYTES;
use crate::decide::{Decided, Decider};
use crate::rules::{Ask, Rules};
use crate::wait::Unit;
use crate::worker::Worker;

/// One check of a run.
#[derive(Debug)]
pub(super) struct Item<'a> {
    /// The form of the answer.
    pub reply: Reply,
    /// Where the policy comes from.
    pub source: Source<'a>,
    /// Who asks.
    pub key: Key<'a>,
    /// How much.
    pub cost: Cost,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// Five integers.
    Throttle(Dialect),
    /// `TOLL.CHECK`'s, times in this unit.
    Toll(Unit),
}

/// Where a policy comes from.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// From the request.
    AdHoc(Rc<Policy>),
    /// From the rules, treatment included.
    Named(Ask<'a>),
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

impl Item<'_> {
    /// What to ask of the store.
    pub(super) fn ask<'b>(&'b self, decider: &'b Decider<'_>) -> Ask<'b> {
        match &self.source {
            Source::Named(ask) => *ask,
            Source::AdHoc(policy) => decider.ask_adhoc(policy, self.key, self.cost),
        }
    }
}

impl Item<'_> {
    /// Writes the reply.
    fn encode(&self, ask: &Ask<'_>, answer: &Decided, encoder: &mut Encoder<'_>) {
        match (self.reply, answer) {
            (Reply::Throttle(dialect), Ok(verdict)) => {
                dialect.encode(&verdict.decisions()[0], encoder);
            }
            (Reply::Throttle(dialect), Err(error)) => {
                encoder.error(&dialect.error(&error.to_string()));
            }
            (Reply::Toll(unit), Ok(verdict)) => {
                check::encode(verdict, std::slice::from_ref(ask), unit, encoder);
            }
            (Reply::Toll(_), Err(error)) => encoder.error(&check::failure(error)),
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
    let mut batch = Batch { worker, rules: &rules, run: Vec::new(), answers: Vec::new() };
    let mut progress = Progress { used: 0, more: true, broken: None };
    let mut args = Vec::with_capacity(8);
    #[cfg(feature = "otlp")]
    let (span, mut commands) =
        (worker.service.traces().and_then(|traces| Some((traces, traces.begin(None)?))), 0);
    for _ in 0..limits.pipeline_max {
        if session.is_closing() || out.len() >= WRITE_BYTES {
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
        traces.end(begun, (crate::metrics::Front::Resp, "RESP batch"), commands, 200);
    }
    progress
}

struct Batch<'a> {
    worker: &'a Worker,
    rules: &'a Rules,
    run: Vec<Item<'a>>,
    answers: Vec<Decided>,
}

impl<'a> Batch<'a> {
    /// Decides as of now: what stands before in the pipeline may have waited for the store.
    fn decider(&self) -> Decider<'a> {
        self.worker.decider(self.rules)
    }

    async fn command(&mut self, args: &[&'a [u8]], session: &mut Session, out: &mut Vec<u8>) {
        let Some(&name) = args.first() else { return };
        if session.is_in_transaction() && !Session::is_immediate(name) {
            return self.put_by(args, session, out).await;
        }
        self.now(name, args, session, out).await;
    }

    /// Answers a command that is not put by.
    async fn now(
        &mut self,
        name: &[u8],
        args: &[&'a [u8]],
        session: &mut Session,
        out: &mut Vec<u8>,
    ) {
        if let Some(dialect) = Dialect::named(name)
            && session.may(Role::Check)
        {
            return self.throttle(dialect, args, session, out).await;
        }
        if let Some(kind) = Kind::named(name)
            && session.may(kind.role())
        {
            return self.toll(kind, args, session, out).await;
        }
        self.flush(session, out).await;
        self.alone(name, args, session, out).await;
    }

    async fn throttle(
        &mut self,
        dialect: Dialect,
        args: &[&'a [u8]],
        session: &Session,
        out: &mut Vec<u8>,
    ) {
        let plan = dialect.plan(args, self.worker);
        if let Ok(Plan::Check(item)) = plan {
            return self.run.push(item);
        }
        self.flush(session, out).await;
        let mut encoder = Encoder::new(out, session.version());
        let (item, is_refund) = match plan {
            Err(text) => return self.refuse(&text, &mut encoder),
            Ok(Plan::Refund(item)) => (item, true),
            Ok(Plan::Peek(item) | Plan::Check(item)) => (item, false),
        };
        let decider = self.decider();
        let asks = [item.ask(&decider)];
        let answer = if is_refund {
            decider.refund(&asks[0]).await
        } else {
            decider.peek(&asks).await.map(|verdict| verdict.decisions()[0].snapshot())
        };
        match answer {
            Ok(snapshot) => {
                dialect.encode_snapshot(snapshot, asks[0].charge.policy, &mut encoder);
            }
            Err(error) => encoder.error(&dialect.error(&error.to_string())),
        }
    }

    async fn toll(&mut self, kind: Kind, args: &[&'a [u8]], session: &Session, out: &mut Vec<u8>) {
        let charges_max = self.worker.service.settings().limits.charges_max;
        let asked = check::asks(&args[1..], self.rules, charges_max);
        if let (Kind::Check, Ok(Asked { asks, unit })) = (kind, &asked)
            && let [ask] = asks[..]
        {
            let Charge { key, cost, .. } = ask.charge;
            let (reply, source) = (Reply::Toll(*unit), Source::Named(ask));
            return self.run.push(Item { reply, source, key, cost });
        }
        self.flush(session, out).await;
        let mut encoder = Encoder::new(out, session.version());
        match asked {
            Ok(asked) => kind.apply(&asked, &self.decider(), &mut encoder).await,
            Err(text) => self.refuse(&text, &mut encoder),
        }
    }

    /// Answers a command within a transaction: puts it by, or ends the transaction.
    async fn put_by(&mut self, args: &[&[u8]], session: &mut Session, out: &mut Vec<u8>) {
        // What came before `MULTI` in the same pipeline is answered before it.
        self.flush(session, out).await;
        let verb = args.first().and_then(|name| Verb::named(name));
        let mut encoder = Encoder::new(out, session.version());
        let refused = match verb {
            Some(Verb::Exec) => return self.exec(session, out).await,
            Some(Verb::Discard) => {
                session.take_transaction();
                return encoder.simple("OK");
            }
            Some(Verb::Multi) => Err("ERR MULTI calls can not be nested".to_owned()),
            Some(Verb::Watch) => Err("ERR WATCH inside MULTI is not allowed".to_owned()),
            Some(Verb::Unwatch) | None => session.put_by(args, self.worker, self.rules),
        };
        match refused {
            Ok(()) => encoder.simple("QUEUED"),
            Err(text) => self.refuse(&text, &mut encoder),
        }
    }

    /// Answers what was put by, as one array.
    async fn exec(&mut self, session: &mut Session, out: &mut Vec<u8>) {
        let mut encoder = Encoder::new(out, session.version());
        let Some(commands) = session.take_transaction().and_then(Transaction::commands) else {
            let text = "EXECABORT Transaction discarded because of previous errors.";
            return self.refuse(text, &mut encoder);
        };
        encoder.array(commands.len());
        let (worker, rules) = (self.worker, self.rules);
        let mut batch = Batch { worker, rules, run: Vec::new(), answers: Vec::new() };
        for command in &commands {
            let args: Vec<&[u8]> = command.iter().map(|arg| &**arg).collect();
            batch.now(args[0], &args, session, out).await;
        }
        batch.flush(session, out).await;
    }

    /// Answers what is about transactions outside of one.
    fn outside(&self, verb: Verb, session: &mut Session, encoder: &mut Encoder<'_>) {
        if let Some(text) = session.refusal(Role::Read) {
            return self.refuse(text, encoder);
        }
        match verb {
            Verb::Multi => {
                session.begin_transaction();
                encoder.simple("OK");
            }
            Verb::Unwatch => encoder.simple("OK"),
            Verb::Exec => self.refuse("ERR EXEC without MULTI", encoder),
            Verb::Discard => self.refuse("ERR DISCARD without MULTI", encoder),
            Verb::Watch => {
                let why = "nothing here is read, compared and written";
                self.refuse(&format!("ERR WATCH is not supported: {why}"), encoder);
            }
        }
    }

    /// Commands that are never part of a run.
    async fn alone(
        &mut self,
        name: &[u8],
        args: &[&'a [u8]],
        session: &mut Session,
        out: &mut Vec<u8>,
    ) {
        if session.is_command(name) {
            return session.apply(name, args, self.worker, out);
        }
        let mut encoder = Encoder::new(out, session.version());
        if let Some(verb) = Verb::named(name) {
            return self.outside(verb, session, &mut encoder);
        }
        let verb = verbs::Command::named(name);
        // An unknown command is told as such only to those who may ask.
        let role = verb.map_or(Role::Check, verbs::Command::role);
        if let Some(text) = session.refusal(role) {
            return self.refuse(text, &mut encoder);
        }
        let outcome = if let Some(command) = settle::Command::named(name) {
            command.apply(args, &self.decider(), &mut encoder).await
        } else if let Some(command) = verb {
            command.apply(args, &self.decider(), &mut encoder).await
        } else {
            Err(unknown(name))
        };
        if let Err(text) = outcome {
            self.refuse(&text, &mut encoder);
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
        metrics.front(crate::metrics::Front::Resp).rejected.add(1);
        encoder.error(text);
    }
}

/// That there is no command of this name, which is shown short and on one line.
pub(super) fn unknown(name: &[u8]) -> String {
    format!("ERR unknown command '{}'", name[..name.len().min(64)].escape_ascii())
}
