//! A batch played again on the core, to work out what the script did not say.
//!
//! The script answers with the time and the values that it found. Playing the same requests in the
//! same order on the same values gives the same decisions, and with them everything else that an
//! answer holds: what is left, when to come back. So these figures are the core's own, and a
//! difference between script and core cannot hide: the decisions are compared.

use tollway_core::shares::Expanded;
use tollway_core::{
    Algorithm, Charge, Cost, Decision, Grant, Held, Key, Mode, Settlement, Snapshot, State,
    Timestamp, Verdict, decide_all,
};

use crate::encoded_policy::EncodedPolicy;
use crate::request::{KeyCharge, Op, Request};
use crate::state_value::Return;

/// What a request was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Verdict(Verdict),
    Grant(Grant),
    Snapshot(Snapshot),
    Reset,
    Settlement(Settlement),
    /// Nothing: of these values, one for each part, some are kept under other numbers.
    OtherNumbers(Vec<Vec<u8>>),
    /// Nothing, since others who asked at once met other numbers.
    AskAgain,
}

/// The states of one batch, as the script found them and as the requests change them.
pub(crate) struct FoundStates {
    now: Timestamp,
    states: Vec<State>,
    returns: Vec<Vec<Return>>,
}

impl FoundStates {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { now, states: Vec::new(), returns: Vec::new() }
    }

    /// Adds the state that `value` says, with what has expired given back; `None` if it is not
    /// ours. As the script did, it takes a state ahead of the server's clock as left there by that
    /// clock being set back: requests come one at a time, and none of them comes late.
    pub(crate) fn add(&mut self, encoded: &EncodedPolicy, value: &[u8]) -> Option<()> {
        let (state, returns) = found(encoded, value, self.now)?;
        self.put(state, returns);
        Some(())
    }

    /// Adds a state as it is now.
    pub(crate) fn put(&mut self, state: State, returns: Vec<Return>) {
        self.states.push(state);
        self.returns.push(returns);
    }

    /// The state with this number.
    pub(crate) fn state(&self, place: usize) -> &State {
        &self.states[place]
    }

    /// Plays one request; `places` are the numbers of its parts' states. `settled` is what the
    /// script says of a reservation: it is settled in a batch of its own, so nothing sees what that
    /// changes.
    pub(crate) fn replay(&mut self, request: &Request, places: &[usize], settled: bool) -> Reply {
        match &request.op {
            Op::Check | Op::Reserve { .. } => {
                let held = self.held(request, places);
                let verdict = self.decide(request, places);
                if verdict.is_allowed() {
                    self.note_returns(request, places, &held);
                }
                Reply::Verdict(verdict)
            }
            Op::Peek => Reply::Verdict(self.peek(request, places)),
            Op::Take => Reply::Grant(self.take(&request.parts[0], request.id, places[0])),
            Op::Refund { taken_at } => {
                let (part, place) = (&request.parts[0], places[0]);
                let algorithm = part.encoded.algorithm();
                self.states[place].refund(algorithm, part.units, *taken_at, self.now);
                Reply::Snapshot(self.states[place].peek(algorithm, self.now))
            }
            Op::Reset => {
                self.states[places[0]] = State::vacant(request.parts[0].encoded.algorithm());
                Reply::Reset
            }
            Op::Settle { .. } if settled => Reply::Settlement(Settlement::Settled),
            Op::Settle { .. } => Reply::Settlement(Settlement::Unknown),
        }
    }

    fn decide(&mut self, request: &Request, places: &[usize]) -> Verdict {
        if request.lends() {
            let (mut states, slots) = self.excerpt(places);
            let verdict = expanded(request).decide(&slots, &mut states, request.id, self.now);
            self.put_back(&slots, places, &states);
            return verdict;
        }
        if let ([part], [place]) = (&request.parts[..], places) {
            let charge = part.charge();
            return Verdict::one(self.states[*place].charge(&charge, request.id, self.now));
        }
        let charges: Vec<Charge<'_>> = request.parts.iter().map(KeyCharge::charge).collect();
        let (mut states, slots) = self.excerpt(places);
        let verdict = decide_all(&charges, &slots, &mut states, request.id, self.now);
        self.put_back(&slots, places, &states);
        verdict
    }

    fn put_back(&mut self, slots: &[usize], places: &[usize], states: &[State]) {
        for (slot, place) in slots.iter().zip(places) {
            self.states[*place] = states[*slot].clone();
        }
    }

    /// The states of one request, each once, and which of them each part is about.
    fn excerpt(&self, places: &[usize]) -> (Vec<State>, Vec<usize>) {
        let mut distinct: Vec<usize> = Vec::with_capacity(places.len());
        let slots = places.iter().map(|place| {
            distinct.iter().position(|known| known == place).unwrap_or_else(|| {
                distinct.push(*place);
                distinct.len() - 1
            })
        });
        let slots = slots.collect();
        (distinct.iter().map(|place| self.states[*place].clone()).collect(), slots)
    }

    fn peek(&self, request: &Request, places: &[usize]) -> Verdict {
        if request.lends() {
            let (states, slots) = self.excerpt(places);
            return expanded(request).peek(&slots, &states, self.now);
        }
        let charges: Vec<Charge<'_>> = request.parts.iter().map(KeyCharge::charge).collect();
        let (mut states, slots) = self.excerpt(places);
        let verdict = decide_all(&charges, &slots, &mut states, request.id, self.now);
        if !verdict.is_allowed() {
            return verdict;
        }
        let untouched = request.parts.iter().zip(places).map(|(part, place)| {
            Decision::Allow(self.states[*place].peek(part.encoded.algorithm(), self.now))
        });
        Verdict::new(untouched.collect())
    }

    fn take(&mut self, part: &KeyCharge, hold_id: u128, place: usize) -> Grant {
        let state = &mut self.states[place];
        let remaining = state.peek(part.encoded.algorithm(), self.now).remaining();
        let charge = part.charge();
        let cost = Grant::affordable(charge.cost, remaining);
        Grant::new(state.charge(&charge.cost(cost), hold_id, self.now), cost)
    }

    /// What each part of a reservation takes if it is allowed.
    fn held(&self, request: &Request, places: &[usize]) -> Vec<Held> {
        if !matches!(request.op, Op::Reserve { .. }) {
            return Vec::new();
        }
        let (states, slots) = self.excerpt(places);
        if request.lends() {
            return expanded(request).held(&slots, &states, request.id, self.now);
        }
        let charges: Vec<Charge<'_>> = request.parts.iter().map(KeyCharge::charge).collect();
        Held::by_all(&charges, &slots, &states, request.id, self.now)
    }

    fn note_returns(&mut self, request: &Request, places: &[usize], held: &[Held]) {
        let Op::Reserve { expires_after, .. } = request.op else { return };
        let parts = request.parts.iter().zip(places).zip(held);
        for ((part, place), held) in parts.filter(|((part, _), _)| part.returns) {
            self.returns[*place].push(Return {
                id: request.id,
                units: held.taken,
                expires_at: self.now.after(expires_after),
                taken_at: self.now,
                mark: part.encoded.head().1,
            });
        }
    }
}

/// The state that `value` says as of now, with what has expired given back, and what will come back
/// some day; `None` if it is not ours.
pub(crate) fn found(
    encoded: &EncodedPolicy,
    value: &[u8],
    now: Timestamp,
) -> Option<(State, Vec<Return>)> {
    let (mut state, mut returns) = encoded.parse(value)?;
    if !encoded.believes() {
        state.rewind(encoded.algorithm(), now);
    }
    let (_, mark) = encoded.head();
    returns.retain(|entry| {
        let is_open = entry.expires_at > now;
        match (encoded.algorithm(), &mut state) {
            _ if is_open => {}
            (Algorithm::Concurrency(limit), State::Concurrency(state)) => {
                limit.release(state, entry.id, now);
            }
            (algorithm, state) => {
                let is_window =
                    matches!(algorithm, Algorithm::FixedWindow(_) | Algorithm::CalendarWindow(_));
                // As decide.lua has it.
                let taken_at = match entry.mark == mark {
                    true => Some(entry.taken_at),
                    false => is_window.then_some(entry.expires_at),
                };
                state.refund(algorithm, entry.units, taken_at, now);
            }
        }
        is_open
    });
    // What was given back leaves no moment behind in a value.
    if !encoded.believes() {
        state.rewind(encoded.algorithm(), now);
    }
    Some((state, returns))
}

/// The charges to trees of owners that the parts of a request were made of.
fn expanded(request: &Request) -> Expanded<'_> {
    Expanded::of_parts(
        request.parts.iter().map(|part| (usize::from(part.place), part.charge(), part.shared)),
    )
}

impl KeyCharge {
    /// The charge that the part was made of, but for the key, which the core does not look at.
    pub(crate) fn charge(&self) -> Charge<'_> {
        let key = Key::new("k").expect("one byte is a key");
        let cost = Cost::new(self.units).unwrap_or(Cost::ONE);
        let charge = Charge::new(&self.encoded.policy, key).cost(cost);
        if self.mode == Mode::Count { charge.counted() } else { charge }
    }
}
