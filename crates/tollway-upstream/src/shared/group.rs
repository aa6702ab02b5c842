//! One group of buckets in this process: who waits, and the task that asks the store for them.
//!
//! A single task makes the calls of a group. What arrives while one is under way goes with the
//! next, so a busy group costs one call for many claims and answers.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::claim_queue::{ClaimQueue, ClaimResult};
use super::keys::Keys;
use super::ledger_state::LedgerState;
use super::replica::{Call, Event, Message, Replica, Reply};
use crate::budget::room::Share;
use crate::budget::{Claim, Correction, Priority, Reason, Refusal};
use crate::fair_queue::QueueKey;
use crate::profile::Observation;

/// How far a priority moves a request forward or back in the line of the fleet.
const PRIORITY_US: u64 = 10_000_000;

/// One group of buckets in this process.
pub(super) struct Group {
    pub(super) name: Arc<str>,
    pub(super) keys: Keys,
    state: Mutex<State>,
    wake_up: Notify,
}

struct State {
    replica: Replica,
    /// Claims that wait, by what a permit must be good for.
    lines: HashMap<Kind, Line>,
    /// Whom each place in the store's line was taken for.
    places: HashMap<u64, HeldPlace>,
    unlocking: Vec<oneshot::Sender<bool>>,
    /// Routes of which the ledger that stands in was told what the documents said.
    told: HashSet<String>,
    is_driven: bool,
    used: Instant,
    /// Of the buckets that all ledgers may remember together.
    share: Share,
}

/// What a permit is good for: route, lane, major, whether the global limit counts it; and costs.
type Kind = (String, crate::profile::Costs);

#[derive(Default)]
struct Line {
    claims: ClaimQueue,
    numbers: BTreeSet<u64>,
}

struct HeldPlace {
    kind: Kind,
    key: QueueKey,
    claim: Claim,
    stamp: u64,
}

impl Group {
    pub(super) fn new(name: Arc<str>, keys: Keys, replica: Replica, share: Share) -> Self {
        let state = State {
            replica,
            lines: HashMap::new(),
            places: HashMap::new(),
            unlocking: Vec::new(),
            told: HashSet::new(),
            is_driven: false,
            used: Instant::now(),
            share,
        };
        Self { name, keys, state: Mutex::new(state), wake_up: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is asked for, and sees to it that somebody asks.
    fn change<T>(
        self: &Arc<Self>,
        ledger: &Arc<LedgerState>,
        change: impl FnOnce(&mut State) -> T,
    ) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        state.used = Instant::now();
        if !std::mem::replace(&mut state.is_driven, true) {
            ledger.rouse();
            ledger.runtime.spawn(drive(Arc::clone(self), Arc::clone(ledger)));
        }
        drop(state);
        self.wake_up.notify_one();
        result
    }

    /// Queues a claim for a route as the documents name it.
    pub(super) fn join(
        self: &Arc<Self>,
        ledger: &Arc<LedgerState>,
        claim: &Claim,
        deadline: Option<Instant>,
    ) -> QueuedClaim {
        let (sender, result) = oneshot::channel();
        let number = ledger.new_number();
        let route = &claim.route;
        let kind = kind_of(claim);
        let stamp = stamp(claim, ledger);
        let deadline = deadline.map(|at| ledger.clock.latest().after(at - Instant::now()));
        let hint = ledger.names.get(route.shape());
        let key = self.change(ledger, |state| {
            let line = state.lines.entry(kind.clone()).or_default();
            let key = line.claims.join(claim, sender);
            line.numbers.insert(number);
            let place = HeldPlace { kind: kind.clone(), key, claim: claim.clone(), stamp };
            state.places.insert(number, place);
            state.replica.stand(number, claim.clone(), stamp, deadline, hint);
            key
        });
        let (group, ledger) = (Arc::clone(self), Arc::clone(ledger));
        QueuedClaim { group, ledger, kind, key, result, is_over: false }
    }

    /// Another process has said something.
    pub(super) fn hear(self: &Arc<Self>, ledger: &Arc<LedgerState>, message: &Message) {
        self.change(ledger, |state| match message {
            Message::Granted(numbers) => {
                let events = state.replica.granted_by_other(numbers, ledger.clock.earliest());
                state.take(events, ledger)
            }
            Message::Look(wait) => state.replica.look_at(ledger.clock.earliest().after(*wait)),
        });
    }

    /// What became of a request.
    pub(super) fn answered(
        self: &Arc<Self>,
        ledger: &Arc<LedgerState>,
        number: u64,
        observation: Observation,
    ) {
        let at = ledger.clock.latest();
        self.change(ledger, |state| state.replica.answered(number, observation, at));
    }

    pub(super) fn abandoned(self: &Arc<Self>, ledger: &Arc<LedgerState>, number: u64) {
        self.change(ledger, |state| state.replica.abandoned(number));
    }

    pub(super) fn cancelled(self: &Arc<Self>, ledger: &Arc<LedgerState>, number: u64) {
        self.change(ledger, |state| state.replica.cancelled(number));
    }

    /// What a request took, of which the answer did not tell what is left.
    pub(super) fn correct(self: &Arc<Self>, ledger: &Arc<LedgerState>, correction: Correction) {
        self.change(ledger, |state| state.replica.correct(correction));
    }

    /// What the documents said of a claim's limits before the store was gone; once for each route.
    pub(super) fn told(&self, ledger: &LedgerState, claim: &Claim) -> Option<Observation> {
        let mut state = self.state();
        if !state.told.insert(kind_of(claim).0) {
            return None;
        }
        state.replica.told(&claim.route, ledger.clock.earliest())
    }

    /// A request leaves while the store is gone.
    pub(super) fn let_go(self: &Arc<Self>, ledger: &Arc<LedgerState>, claim: &Claim) -> u64 {
        let number = ledger.new_number();
        let at = ledger.clock.earliest();
        self.change(ledger, |state| state.replica.let_go(number, claim.clone(), at));
        number
    }

    /// Reads the documents again if somebody waits here.
    pub(super) fn refresh(self: &Arc<Self>, ledger: &Arc<LedgerState>) {
        if self.state().replica.has_waiters() {
            self.change(ledger, |state| state.replica.refresh());
        }
    }

    /// Reads the documents again.
    pub(super) fn look(self: &Arc<Self>, ledger: &Arc<LedgerState>) {
        self.change(ledger, |state| state.replica.refresh());
    }

    /// Processes with something in the documents of a group in which somebody waits here.
    pub(super) fn processes(&self) -> BTreeSet<u64> {
        let state = self.state();
        if state.replica.has_waiters() { state.replica.processes() } else { BTreeSet::new() }
    }

    /// Processes with something in the documents, whoever waits.
    pub(super) fn seen_processes(&self, ledger: &LedgerState) -> BTreeSet<u64> {
        self.state().replica.seen_processes(ledger.clock.earliest())
    }

    /// Processes that are gone.
    pub(super) fn bury(self: &Arc<Self>, ledger: &Arc<LedgerState>, gone: &BTreeSet<u64>) {
        self.change(ledger, |state| state.replica.bury(|process| gone.contains(&process)));
    }

    /// Forgets what blocks a bucket.
    pub(super) fn unlock(
        self: &Arc<Self>,
        ledger: &Arc<LedgerState>,
        bucket: &str,
    ) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.change(ledger, |state| {
            state.unlocking.push(sender);
            state.replica.unlock(bucket);
        });
        receiver
    }

    /// Sends away those whose claim `is_its`, or everybody; how many that were.
    pub(super) fn dismiss(
        self: &Arc<Self>,
        ledger: &Arc<LedgerState>,
        is_its: impl Fn(&Claim) -> bool,
        say: impl Fn() -> ClaimResult,
    ) -> usize {
        self.change(ledger, |state| {
            let places = state.places.iter().filter(|(_, place)| is_its(&place.claim));
            let numbers: Vec<u64> = places.map(|(number, _)| *number).collect();
            let mut count = 0;
            for number in numbers {
                let Some(place) = state.places.remove(&number) else { continue };
                state.replica.leave(number);
                if let Some(mut line) = state.lines.remove(&place.kind) {
                    count += line.claims.dismiss(&say);
                }
            }
            count
        })
    }

    /// Requests that wait here and have no place in the store yet.
    pub(super) fn outside(&self) -> usize {
        self.state().replica.outside()
    }

    /// Whether no request waits or is under way here.
    pub(super) fn is_quiet(&self) -> bool {
        self.state().replica.is_idle()
    }

    /// Whether nothing has happened here for so long that it may be forgotten.
    pub(super) fn is_forgettable(&self, idle: Duration) -> bool {
        let state = self.state();
        !state.is_driven && state.used.elapsed() > idle && state.replica.is_idle()
    }

    /// Takes the store's answer; whether the documents could be read.
    fn settle(&self, ledger: &Arc<LedgerState>, reply: Reply) -> bool {
        let mut state = self.state();
        state.told.clear();
        let events = state.replica.reply(reply, ledger.clock.earliest());
        state.take(events, ledger);
        let buckets = state.replica.bucket_count().max(1);
        state.share.set(buckets);
        state.replica.is_readable()
    }

    /// What to ask of the store now, or how long to rest; none if nobody waits for anything.
    fn next(&self, ledger: &LedgerState) -> Next {
        let mut state = self.state();
        let now = ledger.clock.earliest();
        if let Some(call) = state.replica.next_call(ledger.new_number(), now) {
            return Next::Call(Box::new(call));
        }
        if !state.replica.has_waiters() && !state.replica.has_pending() {
            state.is_driven = false;
            return Next::Stop;
        }
        Next::Rest(state.replica.due().map(|at| ledger.clock.local_time_of(at)))
    }
}

enum Next {
    Call(Box<Call>),
    Rest(Option<Instant>),
    Stop,
}

/// Asks the store for everybody who waits, until nobody does.
async fn drive(group: Arc<Group>, ledger: Arc<LedgerState>) {
    let mut may_repeat = true;
    loop {
        if !ledger.client.is_up() {
            let mut changes = ledger.client.changes();
            if !ledger.client.is_up() && !changes.up().await {
                return;
            }
        }
        match group.next(&ledger) {
            Next::Call(call) => may_repeat = ask(&group, &ledger, *call, may_repeat).await,
            Next::Rest(None) => group.wake_up.notified().await,
            Next::Rest(Some(until)) => {
                let _ = tokio::time::timeout_at(until, group.wake_up.notified()).await;
            }
            Next::Stop => return,
        }
    }
}

/// Asks once; whether the next call may be repeated at once if it fails. The second failure in a
/// row turns everybody away: a server that is there and refuses (LOADING, READONLY) would otherwise
/// be asked as fast as it answers.
async fn ask(group: &Arc<Group>, ledger: &Arc<LedgerState>, call: Call, may_repeat: bool) -> bool {
    match ledger.commit(group, call).await {
        Ok(reply) => {
            if !group.settle(ledger, reply) {
                turn_away(group, ledger).await;
            }
            true
        }
        Err(failure) => {
            group.state().replica.lost();
            if may_repeat && failure.is_transient() && ledger.is_back_soon().await {
                return false;
            }
            turn_away(group, ledger).await;
            true
        }
    }
}

/// Nobody is served here now; not asked again at once, for it would be answered the same.
async fn turn_away(group: &Arc<Group>, ledger: &Arc<LedgerState>) {
    group.dismiss(ledger, |_| true, || ClaimResult::StoreGone);
    if ledger.client.is_up() {
        tokio::time::sleep(ledger.settings.beat()).await;
    }
}

impl State {
    fn take(&mut self, events: Vec<Event>, ledger: &Arc<LedgerState>) {
        for event in events {
            match event {
                Event::Granted(number) => self.grant(number),
                Event::Refused(number, refusal) => self.refuse(number, refusal, ledger),
                Event::Changed(changes) => ledger.note_changes(changes),
                Event::Named(claim, name) => ledger.named(&claim.route, &name),
                Event::Unlocked(was_there) => {
                    if !self.unlocking.is_empty() {
                        let _ = self.unlocking.remove(0).send(was_there);
                    }
                }
            }
        }
    }

    fn grant(&mut self, number: u64) {
        let Some(place) = self.places.remove(&number) else {
            return self.replica.cancelled(number);
        };
        let Some(line) = self.lines.get_mut(&place.kind) else {
            return self.replica.cancelled(number);
        };
        line.numbers.remove(&number);
        if !line.claims.grant(number) {
            self.replica.cancelled(number);
        }
        self.tidy(&place.kind);
    }

    /// A place is refused: whoever it was taken for, unless he was served by another's.
    fn refuse(&mut self, number: u64, refusal: Refusal, ledger: &LedgerState) {
        let Some(place) = self.places.remove(&number) else { return };
        let Some(line) = self.lines.get_mut(&place.kind) else { return };
        line.numbers.remove(&number);
        if !line.claims.refuse(place.key, refusal) && line.numbers.len() < line.claims.len() {
            let number = ledger.new_number();
            line.numbers.insert(number);
            let hint = ledger.names.get(place.claim.route.shape());
            self.replica.stand(number, place.claim.clone(), place.stamp, None, hint);
            self.places.insert(number, place);
            return;
        }
        self.tidy(&place.kind);
    }

    /// A claim leaves: the last place of its line is the least loss.
    fn leave(&mut self, kind: &Kind, key: QueueKey) {
        let Some(line) = self.lines.get_mut(kind) else { return };
        if line.claims.leave(key)
            && let Some(number) = line.numbers.pop_last()
        {
            self.places.remove(&number);
            self.replica.leave(number);
        }
        self.tidy(kind);
    }

    fn tidy(&mut self, kind: &Kind) {
        let is_over = |line: &Line| line.numbers.is_empty() && line.claims.len() == 0;
        if self.lines.get(kind).is_some_and(is_over) {
            self.lines.remove(kind);
        }
    }
}

/// A claim that waits. Dropped, it leaves the queue.
pub(super) struct QueuedClaim {
    group: Arc<Group>,
    ledger: Arc<LedgerState>,
    kind: Kind,
    key: QueueKey,
    result: oneshot::Receiver<ClaimResult>,
    is_over: bool,
}

impl QueuedClaim {
    pub(super) async fn result(&mut self) -> ClaimResult {
        let gone = || ClaimResult::Refused(Refusal { reason: Reason::Unavailable, wait: None });
        let result = (&mut self.result).await.unwrap_or_else(|_| gone());
        self.is_over = true;
        result
    }
}

impl Drop for QueuedClaim {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // It may have been granted just before it was dropped.
        let granted = self.result.try_recv();
        self.group.change(&self.ledger, |state| match granted {
            Ok(ClaimResult::Granted(number)) => state.replica.cancelled(number),
            _ => state.leave(&self.kind, self.key),
        });
    }
}

fn kind_of(claim: &Claim) -> Kind {
    let route = &claim.route;
    let name = [route.shape(), route.lane().unwrap_or(""), route.major()].join("\n");
    (format!("{name}\n{}", route.is_exempt_from_global()), claim.costs)
}

/// A claim's place in the line of the fleet: when it came, moved by its priority.
fn stamp(claim: &Claim, ledger: &LedgerState) -> u64 {
    let arrived = ledger.clock.earliest().as_nanos() / 1_000;
    match claim.priority {
        Priority::High => arrived.saturating_sub(PRIORITY_US),
        Priority::Normal => arrived,
        Priority::Low => arrived + PRIORITY_US,
    }
}
