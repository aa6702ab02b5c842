//! Requests that are answered by one run of a script, on the states of one slot.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use redis::{Cmd, Value};
use tollway_core::{ErrorKind, State, StoreError, Timestamp};

use crate::connection::Script;
use crate::encoded_policy::GCRA;
use crate::numbers::Mark;
use crate::packed_bytes::{put_double, put_number};
use crate::replay::{FoundStates, Reply};
use crate::request::{CarriedValue, KeyCharge, Op, Request};
use crate::script::{bit, gcra_checks, script};
use crate::script_numbers::{moment, pair};
use crate::{gcra_value, layout, single_request, state_value};

/// What one request was answered, when, and on which states.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) reply: Reply,
    /// The server's time.
    pub(crate) now: Timestamp,
    /// The states of a denied request, part by part.
    pub(crate) states: Vec<State>,
}

impl Outcome {
    /// As the answer to a question of this sort: a look tells what is left after a refund.
    pub(crate) fn to(self, asked: &Op) -> Self {
        match (&self.reply, asked) {
            (Reply::Verdict(verdict), Op::Refund { .. }) => {
                Self { reply: Reply::Snapshot(verdict.decisions()[0].snapshot()), ..self }
            }
            _ => self,
        }
    }
}

/// How a batch is asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// The time to decide at; the server's own if `None`.
    pub(crate) at: Option<Timestamp>,
    /// How long the store remembers the answer, for a caller who may have to ask again.
    pub(crate) remember_ms: Option<u64>,
    /// The time that the caller takes to be the server's: scripts are told the windows of calendars
    /// around it.
    pub(crate) about: Timestamp,
}

/// One run of a script.
pub(crate) struct Batch {
    script: &'static Script,
    arguments: Vec<Vec<u8>>,
    states: DistinctStates,
    /// Where the states are, then records of reservations, then the request's own record.
    keys: Vec<Vec<u8>>,
    /// How many of the keys hold states.
    state_keys: usize,
    /// For each request, the numbers of its parts' states.
    numbers: Vec<Vec<usize>>,
    manner: Manner,
}

impl Batch {
    /// A run that answers `requests`, all of them in one slot; or the first of them that asks about
    /// a state under other numbers than one before it, and so is to go with the next run.
    pub(crate) fn new(prefix: &str, requests: &[&Request], manner: Manner) -> Result<Self, usize> {
        let (states, mut keys, numbers) = DistinctStates::of(prefix, requests)?;
        debug_assert!(states.locations.len() <= usize::from(u16::MAX), "batches are bounded");
        let state_keys = keys.len();
        let slot = layout::slot(keys.first().map_or(&[][..], |key| key));
        let record = |sort, request: &Request| layout::record_key(prefix, sort, slot, request.id);
        let recorded = requests.iter().filter(|request| request.has_record());
        keys.extend(recorded.map(|request| record('r', request)));
        if let (Some(_), [request, ..]) = (manner.remember_ms, requests) {
            keys.push(record('q', request));
        }
        let (script, arguments) = (script(states.kinds), Vec::new());
        let mut batch = Self { script, arguments, states, keys, state_keys, numbers, manner };
        batch.choose_script(requests);
        Ok(batch)
    }

    /// Takes the shortest way there is. What a single request sends is not encoded for a batch too:
    /// it hardly ever needs the whole script.
    fn choose_script(&mut self, requests: &[&Request]) {
        let is_gcra_check = self.states.kinds == bit(GCRA)
            && self.states.locations.iter().all(|state| state.other_key.is_none())
            && self.states.carried.is_empty()
            && self.manner.remember_ms.is_none()
            && requests.iter().all(|request| request.op == Op::Check && !request.lends());
        if !is_gcra_check {
            return self.take_whole_script(requests);
        }
        if let [request] = requests
            && self.states.locations.len() == request.parts.len()
        {
            let ids: Vec<_> = self.states.locations.iter().map(|state| state.id).collect();
            let encoded = single_request::encode(request, self.state_keys, &ids, self.manner);
            if let Some(encoded) = encoded {
                return (self.script, self.arguments) = encoded;
            }
        }
        self.take_whole_script(requests);
        self.script = gcra_checks();
    }

    /// The command by the script's name, or with its source where the server does not know it.
    pub(crate) fn command(&self, with_source: bool) -> Cmd {
        self.script.command(with_source, &self.keys, &self.arguments)
    }

    /// Sends the windows of calendars around the server's time, which those sent were not.
    pub(crate) fn ask_about(&mut self, server_us: u64, requests: &[&Request]) {
        self.manner.about = moment(server_us, 0);
        self.take_whole_script(requests);
    }

    /// Takes the whole script in place of a shorter one, which answers nil if it cannot decide.
    pub(crate) fn take_whole_script(&mut self, requests: &[&Request]) {
        self.script = script(self.states.kinds);
        let mut encoded = Vec::with_capacity(requests.len() * 48);
        let mut record = self.state_keys as u64;
        for (request, numbers) in requests.iter().zip(&self.numbers) {
            record += u64::from(request.has_record());
            let mut numbers = numbers.iter();
            let mut number = || numbers.next().map_or(0, |number| *number as u64 + 1);
            request.encode(&mut encoded, &mut number, request.has_record().then_some(record));
        }
        let remember_ms = self.manner.remember_ms.map(|ms| ms.to_string().into_bytes());
        let states = self.states.encode(requests, self.manner.about);
        self.arguments =
            vec![time(self.manner.at), states, encoded, remember_ms.unwrap_or_default()];
        if !self.states.carried.is_empty() {
            self.arguments.push(self.states.encode_carried());
        }
    }

    /// What the server's answer means for each request.
    pub(crate) fn outcomes(
        &self,
        requests: &[&Request],
        answer: Value,
    ) -> Vec<Result<Outcome, StoreError>> {
        let unreadable = || Err(refused("the store's answer cannot be decoded"));
        let outcomes = self.read(requests, answer);
        outcomes.unwrap_or_else(|| requests.iter().map(|_| unreadable()).collect())
    }

    fn read(
        &self,
        requests: &[&Request],
        answer: Value,
    ) -> Option<Vec<Result<Outcome, StoreError>>> {
        let locations = &self.states.locations;
        let (now, digits, found) = match &answer {
            Value::BulkString(answer) => {
                single_request::read(answer, locations.iter().map(|state| state.id))?
            }
            Value::Array(fields) => read_fields(fields)?,
            _ => return None,
        };
        if let (Found::States(values), []) = (&found, digits) {
            return self.under_other_numbers(requests, now, values);
        }
        let mut states = FoundStates::new(now);
        for (number, StateLocation { owner, key, id, .. }) in locations.iter().enumerate() {
            let encoded = &requests[owner.0].parts[owner.1].encoded;
            match &found {
                Found::States(values) => states.add(encoded, values.get(number)?)?,
                Found::Keys(values) => {
                    states.add(encoded, &gcra_value::state(values.get(*key)?, *id)?)?
                }
            }
        }
        let answers = requests.iter().zip(&self.numbers).zip(digits);
        let outcomes: Vec<_> = answers
            .map(|((request, numbers), digit)| outcome(&mut states, request, numbers, *digit, now))
            .collect();
        (outcomes.len() == requests.len()).then_some(outcomes)
    }

    /// Nothing was decided, since some values are kept under other numbers. Who asked about one of
    /// these is told what was found; the others are to ask again.
    fn under_other_numbers(
        &self,
        requests: &[&Request],
        now: Timestamp,
        values: &[Cow<'_, [u8]>],
    ) -> Option<Vec<Result<Outcome, StoreError>>> {
        let mut is_other = Vec::with_capacity(values.len());
        for StateLocation { owner, .. } in &self.states.locations {
            let value = values.get(is_other.len())?;
            let encoded = &requests[owner.0].parts[owner.1].encoded;
            let is_own = value.is_empty() || state_value::head(value) == Some(encoded.head());
            is_other.push(!is_own);
        }
        let outcome = |numbers: &Vec<usize>| {
            let reply = match numbers.iter().any(|number| is_other[*number]) {
                true => Reply::OtherNumbers(
                    numbers.iter().map(|number| values[*number].to_vec()).collect(),
                ),
                false => Reply::AskAgain,
            };
            Ok(Outcome { reply, now, states: Vec::new() })
        };
        Some(self.numbers.iter().map(outcome).collect())
    }
}

/// The time, a digit per request, and what was found before.
pub(crate) type Fields<'a> = (Timestamp, &'a [u8], Found<'a>);

/// What a script found.
pub(crate) enum Found<'a> {
    /// The value of each state.
    States(Vec<Cow<'a, [u8]>>),
    /// The value of each key, all of them ledgers.
    Keys(Vec<&'a [u8]>),
}

fn read_fields<'a>(fields: &'a [Value]) -> Option<Fields<'a>> {
    let [Value::Int(us), Value::Int(ns), Value::BulkString(digits), values @ ..] = fields else {
        return None;
    };
    let value = |value: &'a Value| match value {
        Value::BulkString(value) => Some(&value[..]),
        Value::Nil => Some(&[][..]),
        _ => None,
    };
    let now = moment(u64::try_from(*us).ok()?, u64::try_from(*ns).ok()?);
    let found = match values {
        [Value::Array(values)] => Found::Keys(values.iter().map(value).collect::<Option<_>>()?),
        values => {
            let state = |field| value(field).map(Cow::Borrowed);
            Found::States(values.iter().map(state).collect::<Option<_>>()?)
        }
    };
    Some((now, digits, found))
}

/// Added to the number of the other key where a sign is to be left.
const SIGNS: u64 = 1 << 15;

/// The states that the requests of a batch are about, each once.
#[derive(Default)]
struct DistinctStates {
    locations: Vec<StateLocation>,
    /// The kinds of the states, as bits.
    kinds: u8,
    /// The numbers of states that were carried, and what they were and are.
    carried: Vec<(usize, Arc<CarriedValue>)>,
}

/// For each request the numbers of its parts' states.
type NumbersOfParts = Vec<Vec<usize>>;

/// Where a state is.
struct StateLocation {
    /// A part of some request that is about it.
    owner: (usize, usize),
    /// Which of the keys it is in.
    key: usize,
    /// Which of them it may be in under other numbers, if that is to be looked at.
    other_key: Option<usize>,
    /// Whether a sign is to be left there.
    signs: bool,
    /// Its family and the mark of its numbers.
    id: [u8; 8],
}

impl DistinctStates {
    /// The states and where they are; or the first request that asks about one of them under other
    /// numbers.
    fn of<'a>(
        prefix: &str,
        requests: &[&'a Request],
    ) -> Result<(Self, Vec<Vec<u8>>, NumbersOfParts), usize> {
        let (mut states, mut keys, mut key_numbers) = (Self::default(), Vec::new(), HashMap::new());
        let mut known: HashMap<&'a [u8], (usize, (u8, Mark))> = HashMap::new();
        let mut key_number = |name: Vec<u8>| {
            let next = keys.len();
            *key_numbers.entry(name).or_insert_with_key(|name: &Vec<u8>| {
                keys.push(name.clone());
                next
            })
        };
        let mut add = |owner, part: &KeyCharge| {
            let (ledger, family) = layout::ledger(prefix, &part.key);
            let (is_in_ledger, looks) = (part.encoded.is_in_ledger(), part.encoded.may_be_mixed());
            let text = || part.key.clone();
            let (key, other_key) = match (is_in_ledger, looks) {
                (true, false) => (key_number(ledger), None),
                (false, false) => (key_number(text()), None),
                (true, true) => (key_number(ledger), Some(key_number(text()))),
                (false, true) => (key_number(text()), Some(key_number(ledger))),
            };
            states.kinds |= bit(part.encoded.kind) | if looks { bit(GCRA) } else { 0 };
            let (id, signs) = (part.encoded.id(family), part.encoded.is_mixed());
            states.locations.push(StateLocation { owner, key, other_key, signs, id });
            states.locations.len() - 1
        };
        let (mut numbers, mut carried) = (Vec::with_capacity(requests.len()), Vec::new());
        for (index, request) in requests.iter().enumerate() {
            let mut of_parts = Vec::with_capacity(request.parts.len());
            for (number, part) in request.parts.iter().enumerate() {
                let head = part.encoded.head();
                let (state, known_head) =
                    *known.entry(&part.key).or_insert_with(|| (add((index, number), part), head));
                if known_head != head {
                    return Err(index);
                }
                of_parts.push(state);
                carried.extend(part.carried.clone().map(|carried| (state, carried)));
            }
            numbers.push(of_parts);
        }
        states.carried = carried;
        Ok((states, keys, numbers))
    }

    /// What was carried, as the fifth argument of a script.
    fn encode_carried(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, carried) in &self.carried {
            put_number(&mut out, *number as u64 + 1, 2);
            for value in [&carried.found, &carried.becomes] {
                put_number(&mut out, value.len() as u64, 4);
                out.extend_from_slice(value);
            }
        }
        out
    }

    /// The states as the second argument of a script.
    fn encode(&self, requests: &[&Request], about: Timestamp) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.locations.len() * 53);
        for StateLocation { owner, key, other_key, signs, id } in &self.locations {
            let encoded = &requests[owner.0].parts[owner.1].encoded;
            put_number(&mut out, u64::from(encoded.kind), 1);
            put_number(&mut out, *key as u64 + 1, 2);
            out.extend_from_slice(id);
            let other = other_key.map_or(0, |key| key as u64 + 1);
            put_number(&mut out, other + if *signs { SIGNS } else { 0 }, 2);
            out.extend_from_slice(&encoded.constants_at(about));
        }
        out
    }
}

pub(crate) fn time(at: Option<Timestamp>) -> Vec<u8> {
    let mut time = Vec::new();
    if let Some(at) = at {
        pair(at.as_nanos()).iter().for_each(|limb| put_double(&mut time, *limb));
    }
    time
}

fn outcome(
    states: &mut FoundStates,
    request: &Request,
    numbers: &[usize],
    digit: u8,
    now: Timestamp,
) -> Result<Outcome, StoreError> {
    match digit {
        b'2' => {
            let strange = "somebody else's data is at one of the keys; nothing was overwritten";
            return Err(refused(strange));
        }
        b'3' => return Err(refused("a key has all the open reservations or policies it may have")),
        _ => {}
    }
    let before: Vec<State> = match request.op {
        Op::Check if digit == b'0' => numbers.iter().map(|n| states.state(*n).clone()).collect(),
        _ => Vec::new(),
    };
    let reply = states.replay(request, numbers, digit == b'1');
    let agreed = match &reply {
        Reply::Verdict(verdict) => verdict.is_allowed() == (digit == b'1'),
        Reply::Grant(grant) => (grant.granted > 0) == (digit == b'1'),
        _ => true,
    };
    if !agreed {
        return Err(refused("script and core disagree; is another version writing these keys?"));
    }
    Ok(Outcome { reply, now, states: before })
}

fn refused(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Refused, message)
}
