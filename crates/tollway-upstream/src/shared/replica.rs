//! What one process does about one group of buckets, without a clock or a connection.
//!
//! ```text
//!   claims, answers ──> inputs ──transition──> Call ──compare and set──> done: permits, refusals
//!                         ^                                        └───> conflict: computed again
//!                         └──────────────── lost: asked again ───────────┘  from what is there now
//! ```
//!
//! One call is under way at a time; what comes meanwhile goes with the next. A call is computed
//! from the documents as they were last seen, so one that nobody disturbs takes one round trip.
//! Whoever wins a conflict has changed the documents, so somebody always gets on.
//!
//! **Exactly once.** A document names the last call of each process that changed it. A call whose
//! reply was lost is asked again; if the documents name it, it has been done.
//!
//!
//! What is done after a conflict is in `reconcile`.

mod reconcile;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

pub use super::call::{Call, Event, Message, Reply};
pub use super::counter::Counter;
use super::documents::{Decided, Documents, End, Input, Look};
use super::old_clients::OLD_CLIENTS;
use super::stored::Stored;
use crate::budget::document::Terms;
use crate::budget::{Claim, Correction, Settings};
use crate::profile::{Observation, Profile, Route};

/// Places of one process in a document; its further claims come when one of these has gone.
const PLACES_MAX: usize = 256;
/// What became of requests, kept while the store is gone.
const SETTLED_MAX: usize = 1_024;
/// How often the keys of old clients are looked at while one of their requests is waited for.
const POLL: Duration = Duration::from_millis(100);
/// Whoever is not first in the line looks again so much later than the first.
const AFTER_FIRST: Duration = Duration::from_millis(30);
/// How much a block in the store may be longer than the one known before it is news.
const BLOCK_NEWS: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Place {
    claim: Claim,
    stamp: u64,
    is_in: bool,
    deadline: Option<Timestamp>,
    hint: Option<Arc<str>>,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    now: Timestamp,
    inputs: Vec<Input>,
    documents: Documents,
    decided: Decided,
    after: [Stored; 2],
}

/// What one process does about one group of buckets.
#[derive(Debug)]
pub struct Replica {
    terms: Arc<Terms>,
    me: u64,
    /// The bucket whose counter old clients write, and what they take for no limit.
    beside: Option<(Arc<str>, i64)>,
    /// Whether what old clients have written was read.
    is_read: bool,
    pending: VecDeque<Input>,
    /// Places that are not in the documents yet, in order.
    outside: VecDeque<u64>,
    places: BTreeMap<u64, Place>,
    open: BTreeMap<u64, (Claim, Timestamp)>,
    seen: [Stored; 2],
    documents: Option<Documents>,
    call: Option<UnderWay>,
    /// Calls whose replies were lost, and how many of the pending inputs they had.
    unsure: Vec<(u64, usize)>,
    is_fresh: bool,
    wants_look: bool,
    is_readable: bool,
    due: Option<Timestamp>,
    /// When another process has asked to read the documents again.
    asked: Option<Timestamp>,
}

impl Replica {
    /// For tests that have no store.
    #[must_use]
    pub fn of(profile: Arc<Profile>, settings: Settings, me: u64) -> Self {
        Self::new(Arc::new(Terms::new(profile, settings, settings.lease)), me, None)
    }

    /// `beside` names the bucket whose counter old clients write, and what they take for no limit.
    pub(crate) fn new(terms: Arc<Terms>, me: u64, beside: Option<(Arc<str>, i64)>) -> Self {
        Self {
            terms,
            me,
            is_read: beside.is_none(),
            beside,
            pending: VecDeque::new(),
            outside: VecDeque::new(),
            places: BTreeMap::new(),
            open: BTreeMap::new(),
            seen: Default::default(),
            documents: None,
            call: None,
            unsure: Vec::new(),
            is_fresh: false,
            wants_look: false,
            is_readable: true,
            due: None,
            asked: None,
        }
    }

    /// A request joins the line; `stamp` is its place there, `deadline` when it is refused.
    pub fn stand(
        &mut self,
        number: u64,
        claim: Claim,
        stamp: u64,
        deadline: Option<Timestamp>,
        hint: Option<Arc<str>>,
    ) {
        self.places.insert(number, Place { claim, stamp, is_in: false, deadline, hint });
        self.outside.push_back(number);
    }

    /// It leaves the line.
    pub fn leave(&mut self, number: u64) {
        if let Some(place) = self.places.remove(&number) {
            if place.is_in {
                self.pending.push_back(Input::Leave { number });
            } else {
                self.outside.retain(|other| *other != number);
            }
        }
    }

    /// An answer to a request came at `at`.
    pub fn answered(&mut self, number: u64, observation: Observation, at: Timestamp) {
        self.settle(number, End::Answered { observation: Arc::new(observation), at });
    }

    /// No answer will come.
    pub fn abandoned(&mut self, number: u64) {
        self.settle(number, End::Abandoned);
    }

    /// It was never sent.
    pub fn cancelled(&mut self, number: u64) {
        self.settle(number, End::NeverSent);
    }

    fn settle(&mut self, number: u64, end: End) {
        let Some((claim, left)) = self.open.remove(&number) else { return };
        self.pending.push_back(Input::Settle { number, claim, left, end });
        if self.call.is_none() {
            self.forget_oldest();
        }
    }

    /// Forgets what became of the oldest request if too much is kept for a store that is gone; not
    /// what a call may have told that is unsure.
    fn forget_oldest(&mut self) {
        let kept = self.unsure.iter().map(|(_, count)| *count).max().unwrap_or(0);
        if self.pending.len() <= kept.saturating_add(SETTLED_MAX) {
            return;
        }
        let is_settled = |input: &Input| match input {
            Input::Settle { number, .. } => Some(*number),
            _ => None,
        };
        let Some(oldest) = self.pending.iter().skip(kept).find_map(is_settled) else { return };
        let mut index = 0;
        self.pending.retain(|input| {
            index += 1;
            let is_its = matches!(input, Input::Adopt { number, .. } | Input::Settle { number, .. }
                if *number == oldest);
            index <= kept || !is_its
        });
    }

    /// A request whose answer was told took something else than what it was let go for.
    pub(crate) fn correct(&mut self, correction: Correction) {
        self.pending.push_back(Input::Correct { correction });
    }

    /// A request left without the store; its answer is told as any other's.
    pub fn let_go(&mut self, number: u64, claim: Claim, at: Timestamp) {
        self.pending.push_back(Input::Adopt { number, claim: claim.clone(), left: at });
        self.open.insert(number, (claim, at));
    }

    /// Another process granted these.
    pub fn granted_by_other(&mut self, numbers: &[u64], now: Timestamp) -> Vec<Event> {
        numbers.iter().filter_map(|number| self.open_up(*number, now)).collect()
    }

    fn open_up(&mut self, number: u64, now: Timestamp) -> Option<Event> {
        let place = self.places.remove(&number)?;
        self.outside.retain(|other| *other != number);
        self.open.insert(number, (place.claim, now));
        Some(Event::Granted(number))
    }

    /// Another process says that the documents have changed, and are worth a look at that time.
    pub fn look_at(&mut self, at: Timestamp) {
        self.asked = Some(self.asked.map_or(at, |asked| asked.min(at)));
    }

    /// Reads the documents again, whatever is known.
    pub fn refresh(&mut self) {
        self.wants_look = true;
    }

    /// Processes that are gone.
    pub fn bury(&mut self, gone: impl Fn(u64) -> bool) {
        let Some(documents) = &self.documents else { return };
        for process in documents.processes() {
            if process != self.me && process != OLD_CLIENTS && gone(process) {
                self.pending.push_back(Input::Bury { process });
            }
        }
    }

    /// Forgets what blocks a bucket.
    pub fn unlock(&mut self, bucket: &str) {
        self.pending.push_back(Input::Unlock { bucket: bucket.into() });
    }

    /// When to ask for a call again if nothing happens before.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        if self.call.is_some() {
            return None;
        }
        [self.due, self.asked].into_iter().flatten().min()
    }

    /// Whether requests of this process wait, or are under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.places.is_empty()
            && self.open.is_empty()
            && self.pending.is_empty()
            && self.call.is_none()
    }

    /// Requests that wait here and have no place in the documents yet.
    pub(crate) fn outside(&self) -> usize {
        self.outside.len()
    }

    /// What an answer to a request of that route would tell now, by the documents last seen.
    pub(crate) fn told(&mut self, route: &Route, now: Timestamp) -> Option<Observation> {
        let documents = self.documents.take().unwrap_or_else(|| self.decoded(now));
        let told = documents.budgets.told(route, now);
        self.documents = Some(documents);
        told
    }

    /// Processes with something in the documents, as they were last seen.
    pub(crate) fn processes(&self) -> BTreeSet<u64> {
        self.documents.as_ref().map(Documents::processes).unwrap_or_default()
    }

    /// The same of documents that are not at hand since a call was lost.
    pub(crate) fn seen_processes(&mut self, now: Timestamp) -> BTreeSet<u64> {
        let documents = self.documents.take().unwrap_or_else(|| self.decoded(now));
        self.documents.insert(documents).processes()
    }

    /// Buckets in the documents, as they were last seen.
    pub(crate) fn bucket_count(&self) -> usize {
        self.documents.as_ref().map_or(0, |documents| documents.budgets.bucket_count())
    }

    /// Whether there is anything to tell the store.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.is_fresh || self.wants_look || self.asked.is_some()
    }

    /// Whether requests of this process wait.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.places.is_empty()
    }

    /// Whether the documents can be read: a later version of this program may write others.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.is_readable
    }

    fn decoded(&self, now: Timestamp) -> Documents {
        let bodies = [0, 1].map(|index| &*self.seen[index].body);
        Documents::read(&self.terms, self.beside.as_ref().map(|(bucket, _)| bucket), bodies, now)
    }

    /// What to ask of the store now, if anything; `call` is a number that no call had before.
    pub fn next_call(&mut self, call: u64, now: Timestamp) -> Option<Call> {
        if self.call.is_some() {
            return None;
        }
        self.take_places();
        if self.asked.is_some_and(|at| at <= now) {
            (self.asked, self.wants_look) = (None, true);
        }
        let is_due = self.due.is_some_and(|at| at <= now);
        if self.pending.is_empty() && !is_due && !self.wants_look && !self.is_fresh {
            return None;
        }
        let mut documents = self.documents.take().unwrap_or_else(|| self.decoded(now));
        let inputs: Vec<Input> = self.pending.drain(..).collect();
        let decided = documents.apply(self.me, &inputs, now);
        let mut messages = told(self.me, &decided);
        messages.extend(self.say_when_to_look(&mut documents, now));
        let unlimited = self.beside.as_ref().map_or(0, |(_, unlimited)| *unlimited);
        let counter = documents.reflect(unlimited, now);
        let bodies = documents.bodies();
        let is_changed = [0, 1].map(|index| bodies[index] != self.seen[index].body);
        let is_same = is_changed == [false, false] && counter.written.is_none();
        if inputs.is_empty() && is_same && !self.wants_look && self.is_read {
            self.is_fresh = false;
            self.documents = Some(documents);
            return None;
        }
        (self.is_fresh, self.wants_look) = (false, false);
        let mut expected = [0, 1].map(|index| self.seen[index].version.clone());
        if !self.is_read {
            expected[1] = b"?".to_vec();
        }
        let mut after = self.seen.clone();
        let mut written = [None, None];
        for (index, body) in bodies.into_iter().enumerate().filter(|(index, _)| is_changed[*index])
        {
            after[index].body = body;
            let (stored, bytes) = after[index].written_by(self.me, call);
            after[index] = stored;
            written[index] = Some(bytes);
        }
        let blocked = documents.budgets.account_blocked_for(now).unwrap_or_default();
        let known = documents.budgets.known_until(now).since(now);
        let settings = &self.terms.settings;
        let kept = settings.idle.max(known).saturating_add(settings.lease);
        self.call = Some(UnderWay { number: call, now, inputs, documents, decided, after });
        Some(Call { expected, written, kept, blocked, now, counter, messages })
    }

    /// Puts as many places into the documents as there may be.
    fn take_places(&mut self) {
        let inside = self.places.len() - self.outside.len();
        for _ in 0..PLACES_MAX.saturating_sub(inside) {
            let Some(number) = self.outside.pop_front() else { return };
            let Some(place) = self.places.get_mut(&number) else { continue };
            place.is_in = true;
            self.pending.push_back(place.input(number));
        }
    }

    /// Notes when to look again, and tells whoever is first in the line.
    fn say_when_to_look(
        &mut self,
        documents: &mut Documents,
        now: Timestamp,
    ) -> Option<(u64, Message)> {
        let soon = now.after(Duration::from_millis(1));
        let at = documents.budgets.earliest(now).map(|at| at.max(soon));
        let first = documents.first_in_line();
        let is_first = first == Some(self.me);
        self.due = if is_first { at } else { at.map(|at| at.after(AFTER_FIRST)) };
        if self.places.is_empty() {
            self.due = None;
        } else if documents.awaits_old_client() || documents.budgets.awaits_account_probe(now) {
            // Old clients publish nothing when they learn something, and another group of buckets
            // nothing here.
            self.look_at(now.after(POLL));
        }
        let look = Look { process: first.unwrap_or(0), at };
        if is_first || first.is_none() {
            documents.look = Look::default();
            return None;
        }
        if look == documents.look {
            return None;
        }
        documents.look = look;
        Some((look.process, Message::Look(at?.since(now))))
    }

    /// The store has answered.
    pub fn reply(&mut self, reply: Reply, now: Timestamp) -> Vec<Event> {
        let Some(call) = self.call.take() else { return Vec::new() };
        match reply {
            Reply::Done => self.done(call),
            Reply::Conflict { account, group, blocked, counter } => {
                self.is_read = true;
                self.put_back(call.inputs);
                // What the store says now is looked at below.
                self.pending.retain(|it| !matches!(it, Input::Beside { .. } | Input::Block { .. }));
                self.documents = None;
                match (Stored::read(&account), Stored::read(&group)) {
                    (Some(account), Some(group)) => self.seen = [account, group],
                    _ => {
                        self.is_readable = false;
                        return Vec::new();
                    }
                }
                self.is_readable = true;
                self.drop_what_was_done();
                self.reconcile(blocked, &counter, now)
            }
        }
    }

    /// No answer came: whether the call was done is not known.
    pub fn lost(&mut self) {
        let Some(call) = self.call.take() else { return };
        self.unsure.push((call.number, call.inputs.len()));
        self.put_back(call.inputs);
        self.documents = None;
        self.wants_look = true;
    }

    fn put_back(&mut self, inputs: Vec<Input>) {
        for input in inputs.into_iter().rev() {
            self.pending.push_front(input);
        }
    }

    fn done(&mut self, call: UnderWay) -> Vec<Event> {
        self.unsure.clear();
        let mut events = Vec::new();
        let me = self.me;
        for owner in call.decided.granted.iter().filter(|owner| owner.process == me) {
            let now = call.documents.left_at(*owner);
            match self.open_up(owner.number, now) {
                Some(event) => events.push(event),
                // It left the line while it was granted.
                None => self.give_back(owner.number),
            }
        }
        for (number, refusal) in call.decided.refused {
            if self.places.remove(&number).is_some() {
                events.push(Event::Refused(number, refusal));
            }
        }
        for input in call.inputs {
            match input {
                Input::Settle { claim, end: End::Answered { observation, .. }, .. } => {
                    let name = call.documents.budgets.name_of(&claim.route);
                    let name = name.filter(|_| observation.bucket.is_some()).map(Arc::from);
                    events.extend(name.map(|name| Event::Named(claim, name)));
                }
                Input::Unlock { .. } => events.push(Event::Unlocked(call.decided.unlocked)),
                _ => {}
            }
        }
        self.seen = call.after;
        let mut documents = call.documents;
        let changes = documents.budgets.take_changes(call.now);
        if !changes.is_empty() {
            events.push(Event::Changed(changes));
        }
        self.documents = Some(documents);
        events
    }

    /// A permit that nobody here wants; that it was left is told already, or it is now.
    fn give_back(&mut self, number: u64) {
        let is_leave =
            |input: &Input| matches!(input, Input::Leave { number: left } if *left == number);
        if !self.open.contains_key(&number) && !self.pending.iter().any(is_leave) {
            self.pending.push_back(Input::Leave { number });
        }
    }
}

impl Place {
    fn input(&self, number: u64) -> Input {
        Input::Stand {
            number,
            claim: self.claim.clone(),
            stamp: self.stamp,
            deadline: self.deadline,
            hint: self.hint.clone(),
        }
    }
}

/// The permits of other processes, one message for each process.
fn told(me: u64, decided: &Decided) -> Vec<(u64, Message)> {
    let mut numbers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for owner in decided.granted.iter().filter(|owner| owner.process != me) {
        numbers.entry(owner.process).or_default().push(owner.number);
    }
    numbers.into_iter().map(|(process, numbers)| (process, Message::Granted(numbers))).collect()
}
