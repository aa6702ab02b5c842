//! Keys that are kept under other numbers than those asked under.
//!
//! ```text
//!   check ──> script: other numbers, nothing done ──> what are they? ──> carried on the core
//!     ^                                                 (numbers)              │
//!     └──── asked again, with what was found and what it is under these <──────┘
//! ```
//!
//! Scripts know no change of numbers. One that finds a value under other numbers than it was told
//! does nothing and answers with the value; [`State::carry`] says here what it is under those of
//! the question. Asked again, the script takes that in place of what was found, if nobody has
//! written anything else meanwhile. So a policy that never changes pays for nothing, and a change
//! costs a key two round trips, once.
//!
//! A look writes nothing. What gives units back acts under the numbers by which the key is kept.
//!
//! Values are carried to newer numbers only. Who asks under older ones asks again under those that
//! the key is kept under, as if he had been told of the change: nothing is ever converted back. A
//! state that says nothing holds nobody to its numbers, nor does one whose numbers nobody uses.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::Instant;
use tollway_core::{
    Algorithm, ErrorKind, Policy, ReservationId, SKEW, State, StoreError, Timestamp,
};

use super::Inner;
use crate::batch::Outcome;
use crate::call::{CallError, shut_down};
use crate::connection::unavailable;
use crate::encoded_policy::{EncodedPolicy, Need};
use crate::numbers::{Known, Mark, look_up, note, read};
use crate::replay::{FoundStates, found};
use crate::request::{CarriedValue, KeyCharge, Op, Request};
use crate::state_value::{HEAD_LEN, Return, format, head, is_whole};
use crate::{layout, script};

/// What comes of a request that met other numbers.
pub(super) enum Carried {
    Answer(Outcome),
    /// It is to be asked so.
    Ask(Arc<Request>),
}

/// What is to be done about one of its keys.
enum Step {
    /// To ask again.
    Again,
    /// To ask under these numbers, which are those that the key is kept under.
    Under(EncodedPolicy),
    /// To ask with this value in place of what was found; under these numbers, if there are any.
    With(Vec<u8>, Option<EncodedPolicy>),
    /// To look at the state that it would be.
    Look(State, Vec<Return>),
}

impl Inner {
    /// Carries the keys of a request, of which `values` were found; some are kept under other
    /// numbers.
    pub(super) async fn under_other_numbers(
        &self,
        request: &Arc<Request>,
        values: &[Vec<u8>],
        now: Timestamp,
    ) -> Result<Carried, CallError> {
        let mut again = Request::clone(request);
        let mut looked_at = FoundStates::new(now);
        let (mut is_look, mut adopted) = (request.op == Op::Peek, Vec::new());
        for (index, (part, value)) in request.parts.iter().zip(values).enumerate() {
            let asked = &mut again.parts[index];
            asked.carried = None;
            if value.is_empty() || head(value) == Some(part.encoded.head()) {
                if is_look {
                    looked_at.add(&part.encoded, value).ok_or_else(strange_data)?;
                }
                continue;
            }
            let step = self.step(&request.op, part, value, now).await?;
            is_look &= matches!(step, Step::Look(..));
            match step {
                Step::Look(state, returns) => looked_at.put(state, returns),
                Step::Again => {}
                Step::Under(encoded) => {
                    asked.encoded = Arc::new(encoded);
                    adopted.push(index);
                }
                Step::With(becomes, under) => {
                    asked.encoded = under.map_or_else(|| Arc::clone(&asked.encoded), Arc::new);
                    let found = value.clone();
                    asked.carried = Some(Arc::new(CarriedValue { found, becomes }));
                }
            }
        }
        if is_look {
            let place = |part: &KeyCharge| {
                request.parts.iter().position(|other| other.key == part.key).unwrap_or_default()
            };
            let places: Vec<usize> = request.parts.iter().map(place).collect();
            let reply = looked_at.replay(request, &places, false);
            return Ok(Carried::Answer(Outcome { reply, now, states: Vec::new() }));
        }
        self.note_taken(&mut again, &adopted).await?;
        if !adopted.is_empty() {
            again.take_terms_of_parts();
        }
        Ok(Carried::Ask(Arc::new(again)))
    }

    async fn step(
        &self,
        op: &Op,
        part: &KeyCharge,
        value: &[u8],
        now: Timestamp,
    ) -> Result<Step, CallError> {
        let (kind, mark) = head(value).ok_or_else(strange_data)?;
        if is_sign(value, kind, mark) {
            part.encoded.now_mixed();
            return Ok(Step::Again);
        }
        if mark.kind() != kind || !is_whole(value) {
            return Err(strange_data());
        }
        if let Some(twin) = part.encoded.twin()
            && twin.head() == (kind, mark)
        {
            return Ok(Step::Under(twin));
        }
        let family = layout::family(&self.settings.prefix, &part.key).unwrap_or_default();
        let [kept, own] = self.look_up(family, [mark, part.encoded.head().1]).await?;
        let old = kept.and_then(|kept| under(&part.encoded, kept.algorithm, mark));
        let (Some(kept), Some(old)) = (kept, old) else {
            // Nobody knows these numbers any more.
            return Ok(Step::With(Vec::new(), None));
        };
        if old.is_in_ledger() != part.encoded.is_in_ledger() {
            part.encoded.now_mixed();
            old.now_mixed();
        }
        let (state, returns) = found(&old, value, now).ok_or_else(strange_data)?;
        match op {
            Op::Refund { .. } | Op::Reset => Ok(Step::Under(old)),
            // A state that says nothing is as good as none: the numbers of the charge are right.
            Op::Settle { .. } if state.vacant_at(old.algorithm()) <= now => {
                let nothing = State::vacant(part.encoded.algorithm());
                Ok(carried(&part.encoded, (nothing, returns), now))
            }
            Op::Settle { .. } => Ok(Step::Under(old)),
            _ => {
                let algorithm = part.encoded.algorithm();
                // Notes have the server's time, which a caller's in tests may be far from.
                let noted_before = if self.obeys_caller { Timestamp::MIN } else { now };
                let is_older = own.is_some_and(|own| kept.come_before(&own, noted_before));
                if is_older && state.keeps_its_numbers(old.algorithm(), algorithm, now) {
                    return Ok(Step::Under(old));
                }
                let rule = part.encoded.policy.change_rule();
                let state = state.carry(old.algorithm(), algorithm, rule, now);
                if *op == Op::Peek {
                    return Ok(Step::Look(state, returns));
                }
                Ok(carried(&part.encoded, (state, returns), now))
            }
        }
    }

    /// Notes in a settlement how much was taken by parts whose numbers have changed since: only
    /// the record knows it, in limbs of the numbers of then.
    async fn note_taken(&self, request: &mut Request, adopted: &[usize]) -> Result<(), CallError> {
        let Op::Settle { taken, .. } = &mut request.op else { return Ok(()) };
        if adopted.is_empty() {
            return Ok(());
        }
        let record = self.fetch(ReservationId(request.id)).await.map_err(CallError::store)?;
        // Without a record it is over, and the script says so.
        let Some(record) = record else { return Ok(()) };
        taken.resize(request.parts.len(), None);
        for index in adopted {
            taken[*index] = record.taken.get(*index).copied();
        }
        Ok(())
    }

    async fn look_up(
        &self,
        family: u64,
        marks: [Mark; 2],
    ) -> Result<[Option<Known>; 2], CallError> {
        let prefix = &self.settings.prefix;
        let slot = layout::slot(&layout::numbers_key(prefix, family));
        let command = look_up(prefix, family, &marks);
        let answer = self.send(slot, command).await.map_err(CallError::store)?;
        let mut known = read(&answer).into_iter();
        Ok([known.next().flatten(), known.next().flatten()])
    }

    /// Sees to it that what the request writes can be read by whoever knows other numbers only.
    pub(super) async fn note_numbers_of(&self, request: &Request) {
        if !matches!(request.op, Op::Check | Op::Take | Op::Reserve { .. }) {
            return;
        }
        for part in &request.parts {
            match part.encoded.needs_note() {
                None => {}
                Some(Need::First) => {
                    let _noting = part.encoded.noting.lock().await;
                    if part.encoded.needs_note() == Some(Need::First) {
                        let noted = self.note(part, self.settings.timeout / 2);
                        note_outcome(&part.encoded, noted.await);
                    }
                }
                Some(Need::Again) => {
                    let noted = self.note(part, self.settings.timeout);
                    let encoded = Arc::clone(&part.encoded);
                    self.runtime.spawn(async move { note_outcome(&encoded, noted.await) });
                }
            }
        }
    }

    /// Notes the numbers of a part; whether its family has others of the other sort.
    fn note(
        &self,
        part: &KeyCharge,
        budget: Duration,
    ) -> impl Future<Output = Option<bool>> + use<> {
        let family = layout::family(&self.settings.prefix, &part.key).unwrap_or_default();
        self.note_all(family, &[&part.encoded.policy], false, budget)
    }

    /// Notes numbers of one family, and puts them in force now if that is asked.
    pub(super) fn note_all(
        &self,
        family: u64,
        policies: &[&Policy],
        in_force_now: bool,
        budget: Duration,
    ) -> impl Future<Output = Option<bool>> + use<> {
        let prefix = &self.settings.prefix;
        let slot = layout::slot(&layout::numbers_key(prefix, family));
        let (keys, arguments) = note(prefix, family, policies, in_force_now);
        let node = self.router.node(slot);
        let runtime = self.runtime.clone();
        async move {
            let client = Arc::clone(&node?.client);
            if !client.is_up() {
                return None;
            }
            let noting = runtime.spawn(async move {
                let until = Instant::now() + budget;
                client.run_until(script::note_numbers(), &keys, &arguments, until).await
            });
            match noting.await {
                Ok(Ok(Value::Int(is_mixed))) => Some(is_mixed == 1),
                _ => None,
            }
        }
    }

    async fn send(&self, slot: u16, command: Cmd) -> Result<Value, StoreError> {
        let absent = || unavailable("no server of the cluster holds the slot");
        let client = Arc::clone(&self.router.node(slot).ok_or_else(absent)?.client);
        // On the store's runtime, which keeps the time: whoever awaits this need not run in one.
        let sent = self.runtime.spawn(async move { client.send(&command).await });
        Ok(sent.await.map_err(|_| shut_down())??)
    }
}

/// A state that was carried, as the script is to take it.
fn carried(own: &EncodedPolicy, (state, returns): (State, Vec<Return>), now: Timestamp) -> Step {
    // Permits may be held for longer than a lease lasts now: no clock was set back, and nothing is
    // to be mended.
    let is_beyond = match (own.algorithm(), &state) {
        (Algorithm::Concurrency(limit), State::Concurrency(state)) => {
            let longest = now.after(limit.lease()).after(SKEW);
            state.holds().iter().any(|hold| hold.expires_at > longest)
        }
        _ => false,
    };
    let to = if is_beyond && !own.believes() { own.twin() } else { None };
    let under = to.as_ref().unwrap_or(own);
    let value = match returns.is_empty() && state.vacant_at(under.algorithm()) <= now {
        true => Vec::new(),
        false => format(under.algorithm(), under.head(), &state, &returns),
    };
    Step::With(value, to)
}

/// A policy under the numbers that a value is kept under; `None` if the mark is of others.
fn under(encoded: &EncodedPolicy, algorithm: Algorithm, mark: Mark) -> Option<EncodedPolicy> {
    let old = encoded.under(algorithm);
    if encoded.is_mixed() {
        old.now_mixed();
    }
    if old.head().1 == mark { Some(old) } else { old.twin().filter(|old| old.head().1 == mark) }
}

fn note_outcome(encoded: &EncodedPolicy, noted: Option<bool>) {
    match noted {
        Some(is_mixed) => encoded.noted(is_mixed),
        None => encoded.not_noted(),
    }
}

/// Whether a value only says that the state is at the key of the other sort.
fn is_sign(value: &[u8], kind: u8, mark: Mark) -> bool {
    kind == 1 && (mark.kind() != 1 || value.len() == HEAD_LEN)
}

fn strange_data() -> CallError {
    let strange = "somebody else's data is at one of the keys; nothing was overwritten";
    CallError::request(StoreError::new(ErrorKind::Refused, strange))
}
