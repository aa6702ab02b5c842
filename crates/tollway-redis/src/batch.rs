//! Requests that are answered by one run of a script, on the states of one slot.

use std::borrow::Cow;
use std::collections::HashMap;

use redis::{Cmd, Value};
use tollway_core::{ErrorKind, State, StoreError, Timestamp};

use crate::connection::Script;
use crate::encoded_policy::GCRA;
use crate::packed_bytes::{put_double, put_number};
use crate::replay::{FoundStates, Reply};
use crate::request::{KeyCharge, Op, Request};
use crate::script::{bit, gcra_checks, script};
use crate::script_numbers::{moment, pair};
use crate::{gcra_value, layout, single_request};

/// What one request was answered, when, and on which states.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) reply: Reply,
    /// The server's time.
    pub(crate) now: Timestamp,
    /// The states of a denied request, part by part.
    pub(crate) states: Vec<State>,
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
    /// A run that answers `requests`, all of them in one slot.
    pub(crate) fn new(prefix: &str, requests: &[&Request], manner: Manner) -> Self {
        let (states, mut keys, numbers) = DistinctStates::of(prefix, requests);
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
        batch
    }

    /// Takes the shortest way there is. What a single request sends is not encoded for a batch too:
    /// it hardly ever needs the whole script.
    fn choose_script(&mut self, requests: &[&Request]) {
        let is_gcra_check = self.states.kinds == bit(GCRA)
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
            Value::BulkString(answer) => single_request::read(answer, locations.len())?,
            Value::Array(fields) => read_fields(fields)?,
            _ => return None,
        };
        let mut states = FoundStates::new(now);
        for (number, StateLocation { owner, key, id }) in locations.iter().enumerate() {
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

/// The states that the requests of a batch are about, each once.
#[derive(Default)]
struct DistinctStates {
    locations: Vec<StateLocation>,
    /// The kinds of the states, as bits.
    kinds: u8,
}

/// Where a state is.
struct StateLocation {
    /// A part of some request that is about it.
    owner: (usize, usize),
    /// Which of the keys it is in.
    key: usize,
    /// Names it there, if it shares the key.
    id: [u8; 8],
}

impl DistinctStates {
    /// The states, the keys that they are in, and for each request the numbers of its parts'
    /// states.
    fn of<'a>(prefix: &str, requests: &[&'a Request]) -> (Self, Vec<Vec<u8>>, Vec<Vec<usize>>) {
        let (mut states, mut keys, mut key_numbers) = (Self::default(), Vec::new(), HashMap::new());
        let mut known: HashMap<&'a [u8], usize> = HashMap::new();
        let mut add = |owner, part: &KeyCharge| {
            let (name, id) = match part.encoded.shares() {
                true => layout::ledger(prefix, &part.key),
                false => (part.key.clone(), [0; 8]),
            };
            let next = keys.len();
            let key = *key_numbers.entry(name).or_insert_with_key(|name: &Vec<u8>| {
                keys.push(name.clone());
                next
            });
            states.kinds |= bit(part.encoded.kind);
            states.locations.push(StateLocation { owner, key, id });
            states.locations.len() - 1
        };
        let mut numbers = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let parts = request.parts.iter().enumerate();
            let number = parts.map(|(number, part)| {
                *known.entry(&part.key).or_insert_with(|| add((index, number), part))
            });
            numbers.push(number.collect());
        }
        (states, keys, numbers)
    }

    /// The states as the second argument of a script.
    fn encode(&self, requests: &[&Request], about: Timestamp) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.locations.len() * 51);
        for StateLocation { owner, key, id } in &self.locations {
            let encoded = &requests[owner.0].parts[owner.1].encoded;
            put_number(&mut out, u64::from(encoded.kind), 1);
            put_number(&mut out, *key as u64 + 1, 2);
            out.extend_from_slice(id);
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
        Reply::Snapshot(_) | Reply::Reset | Reply::Settlement(_) => true,
    };
    if !agreed {
        return Err(refused("script and core disagree; is another version writing these keys?"));
    }
    Ok(Outcome { reply, now, states: before })
}

fn refused(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Refused, message)
}
