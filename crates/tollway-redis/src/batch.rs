//! Requests that are answered by one run of a script, on the states of one slot.

use std::borrow::Cow;
use std::collections::HashMap;

use redis::{Cmd, Value};
use tollway_core::{ErrorKind, State, StoreError, Timestamp};

use crate::connection::Script;
use crate::packed_bytes::{put_double, put_number};
use crate::replay::{Board, Reply};
use crate::request::{Op, Request};
use crate::script::{bit, script, short};
use crate::script_numbers::{moment, pair};
use crate::single_request::SingleRequest;
use crate::{gcra_value, layout};

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
}

/// One run of a script.
pub(crate) struct Batch {
    script: &'static Script,
    /// The kinds of its states, as bits.
    kinds: u8,
    keys: Vec<Vec<u8>>,
    arguments: [Vec<u8>; 4],
    /// The script for this request alone and its arguments, if it has one.
    brief: Option<SingleRequest>,
    /// For each request, the numbers of its parts' states.
    places: Vec<Vec<usize>>,
    states: Vec<Place>,
}

/// Where a state is.
struct Place {
    /// A part of some request that is about it.
    owner: (usize, usize),
    /// Which of the keys it is in.
    home: usize,
    /// RandomIds it there, if it shares the key.
    id: [u8; 8],
}

impl Batch {
    /// A run that answers `requests`, all of them in one slot.
    pub(crate) fn new(prefix: &str, requests: &[&Request], manner: Manner) -> Self {
        let mut plan = Plan { prefix, ..Plan::default() };
        let places: Vec<Vec<usize>> = requests
            .iter()
            .enumerate()
            .map(|(index, request)| plan.place(index, request))
            .collect();
        let mut keys = plan.keys;
        let homes = keys.len();
        let slot = layout::slot(keys.first().map_or(&[][..], |key| key));
        let mut encoded = Vec::with_capacity(requests.len() * 48);
        for (request, places) in requests.iter().zip(&places) {
            let record = request.has_record().then(|| {
                keys.push(layout::record_key(prefix, 'r', slot, request.id));
                keys.len() as u64
            });
            let mut numbers = places.iter();
            let mut place = || numbers.next().map_or(0, |number| *number as u64 + 1);
            request.encode(&mut encoded, &mut place, record);
        }
        let remembered = manner.remember_ms.map(|ms| ms.to_string().into_bytes());
        if let (Some(_), [request, ..]) = (&remembered, requests) {
            keys.push(layout::record_key(prefix, 'q', slot, request.id));
        }
        debug_assert!(plan.states.len() <= usize::from(u16::MAX), "batches are bounded");
        let arguments = [time(manner.at), plan.spec, encoded, remembered.unwrap_or_default()];
        let is_short = plan.kinds == bit(1)
            && manner.remember_ms.is_none()
            && requests.iter().all(|request| request.op == Op::Check);
        let script = if is_short { short() } else { script(plan.kinds) };
        let brief = match requests {
            [request] if is_short && plan.states.len() == request.parts.len() => {
                let ids: Vec<_> = plan.states.iter().map(|place| place.id).collect();
                SingleRequest::new(request, homes, &ids, manner)
            }
            _ => None,
        };
        Self { script, kinds: plan.kinds, keys, arguments, brief, places, states: plan.states }
    }

    /// The command by the script's name, or with its source where the server does not know it.
    pub(crate) fn command(&self, with_source: bool) -> Cmd {
        let (script, arguments) = match &self.brief {
            Some(brief) => (brief.script, &brief.arguments[..]),
            None => (self.script, &self.arguments[..]),
        };
        script.command(with_source, &self.keys, arguments)
    }

    /// Takes the whole script in place of the short one, which answers nil if it cannot decide.
    pub(crate) fn take_whole_script(&mut self) {
        self.brief = None;
        self.script = script(self.kinds);
    }

    /// What the server's answer means for each request.
    pub(crate) fn outcomes(
        &self,
        requests: &[&Request],
        answer: Value,
    ) -> Vec<Result<Outcome, StoreError>> {
        match self.read(requests, answer) {
            Some(outcomes) => outcomes,
            None => {
                let strange = || Err(refused("the store's answer does not read"));
                requests.iter().map(|_| strange()).collect()
            }
        }
    }

    fn read(
        &self,
        requests: &[&Request],
        answer: Value,
    ) -> Option<Vec<Result<Outcome, StoreError>>> {
        let (now, digits, found) = match (&answer, &self.brief) {
            (Value::BulkString(answer), Some(brief)) => brief.read(answer)?,
            (Value::Array(fields), _) => read_fields(fields)?,
            _ => return None,
        };
        let mut board = Board::new(now);
        for (number, Place { owner, home, id }) in self.states.iter().enumerate() {
            let terms = &requests[owner.0].parts[owner.1].terms;
            match &found {
                Found::States(values) => board.add(terms, values.get(number)?)?,
                Found::Keys(values) => {
                    board.add(terms, &gcra_value::state(values.get(*home)?, *id)?)?
                }
            }
        }
        let answers = requests.iter().zip(&self.places).zip(digits);
        let outcomes: Vec<_> = answers
            .map(|((request, places), digit)| outcome(&mut board, request, places, *digit, now))
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

/// The distinct states of a batch.
#[derive(Default)]
struct Plan<'a> {
    prefix: &'a str,
    /// Where the states are.
    keys: Vec<Vec<u8>>,
    homes: HashMap<Vec<u8>, usize>,
    states: Vec<Place>,
    numbers: HashMap<&'a [u8], usize>,
    spec: Vec<u8>,
    kinds: u8,
}

impl<'a> Plan<'a> {
    fn place(&mut self, index: usize, request: &'a Request) -> Vec<usize> {
        let parts = request.parts.iter().enumerate();
        let place = |(number, part): (usize, &'a crate::request::KeyCharge)| {
            if let Some(known) = self.numbers.get(&part.key[..]) {
                return *known;
            }
            self.numbers.insert(&part.key, self.states.len());
            let (key, id) = match part.terms.shares() {
                true => layout::ledger(self.prefix, &part.key),
                false => (part.key.clone(), [0; 8]),
            };
            let home = self.home(key);
            put_number(&mut self.spec, u64::from(part.terms.kind), 1);
            put_number(&mut self.spec, home as u64 + 1, 2);
            self.spec.extend_from_slice(&id);
            self.spec.extend_from_slice(&part.terms.constants);
            self.kinds |= bit(part.terms.kind);
            self.states.push(Place { owner: (index, number), home, id });
            self.states.len() - 1
        };
        parts.map(place).collect()
    }

    /// The number of a key.
    fn home(&mut self, key: Vec<u8>) -> usize {
        let next = self.keys.len();
        *self.homes.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            next
        })
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
    board: &mut Board,
    request: &Request,
    places: &[usize],
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
        Op::Check if digit == b'0' => places.iter().map(|n| board.state(*n).clone()).collect(),
        _ => Vec::new(),
    };
    let reply = board.play(request, places, digit == b'1');
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
