//! Decisions: asks in, verdicts out, with lists, shadow mode, counts and failures applied.
//!
//! The one way from every front to the store. Nothing is charged unless every enforced charge of a
//! request is allowed; charges in shadow mode are decided on their own after that, so that a policy
//! on trial can never take part in a denial:
//!
//! ```text
//!   asks --+-- banned --------------> denied, the rest only looked at
//!          +-- enforced, together --> denied: the rest only looked at
//!          |                          allowed: then each
//!          +-- shadow, one by one --> allowed whatever was decided, store failures included
//!          +-- exempt --------------> allowed, the store not asked
//! ```

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::{Duration, Instant};

use tollway_core::{
    Answer, Charge, Cost, Decision, ErrorKind, Grant, Key, Policy, ReservationId, Reserved, Retry,
    Settlement, Snapshot, StoreError, Timestamp, Verdict,
};
use tollway_memory::MemoryStore;

use crate::counting::Counting;
use crate::enforcer::Enforcer;
use crate::rules::{Ask, Rules, Source, Treatment};
use crate::settings::Settings;
use crate::top::Tops;

/// The answer to one ask of a batch.
pub(crate) type Decided = Result<Verdict, StoreError>;

/// The decisions of one request, or of one batch: under rules that were loaded once, at a time that
/// was read once. Whatever is told to the client is told of the same rules and the same time.
#[derive(Clone, Copy)]
pub(crate) struct Decider<'a> {
    pub enforcer: &'a Enforcer,
    pub settings: &'a Settings,
    pub tops: &'a Mutex<Tops>,
    /// The rules in force when the request came.
    pub rules: &'a Rules,
    /// When the request is decided.
    pub now: Timestamp,
}

impl<'a> Decider<'a> {
    /// What to ask for `key` under a policy that came with the request.
    pub(crate) fn ask_adhoc<'b>(&'b self, policy: &'b Policy, key: Key<'b>, cost: Cost) -> Ask<'b> {
        self.rules.ask(Source::request(policy, self.enforcer.adhoc_tally()), key, cost)
    }

    /// Answers independent asks, each on its own, as one batch.
    pub(crate) async fn check_each(&self, asks: &[Ask<'_>], answers: &mut Vec<Decided>) {
        let started = Instant::now();
        answers.clear();
        match self.at_hand(asks) {
            // A batch does not say which owner of a tree denied.
            Some(memory) if asks.iter().any(|ask| ask.charge.policy.shares().is_some()) => {
                let decide = |ask: &Ask<'_>| match ask.is_asked() {
                    true => memory.check_all(std::slice::from_ref(&ask.charge), self.now),
                    false => Verdict::one(ask.unasked()),
                };
                answers.extend(asks.iter().map(decide).map(Ok));
            }
            Some(memory) => {
                let asked = asks.iter().filter(|ask| ask.is_asked());
                let charges: Vec<Charge<'_>> = asked.map(|ask| ask.charge).collect();
                let mut decisions = Vec::with_capacity(charges.len());
                memory.check_batch(&charges, self.now, &mut decisions);
                let mut decisions = decisions.into_iter();
                answers.extend(asks.iter().map(|ask| {
                    let decided = if ask.is_asked() { decisions.next() } else { None };
                    Ok(Verdict::one(decided.unwrap_or_else(|| ask.unasked())))
                }));
            }
            None => {
                if self.check_each_shared(asks, answers).await {
                    self.enforcer.metrics().store_seconds.observe(started.elapsed());
                }
            }
        }
        for (ask, answer) in asks.iter().zip(answers.iter_mut()) {
            count_hits(std::slice::from_ref(ask), answer);
            self.apply_treatments(std::slice::from_ref(ask), answer);
        }
        self.counting().count(asks, answers);
        self.enforcer.metrics().decision_seconds.observe(started.elapsed());
    }

    /// Answers one ask, as [`Self::check_each`] does.
    pub(crate) async fn check_one(&self, ask: &Ask<'_>) -> Decided {
        let Some(memory) = self.at_hand(std::slice::from_ref(ask)) else {
            let mut answers = Vec::with_capacity(1);
            self.check_each(std::slice::from_ref(ask), &mut answers).await;
            return answers.pop().unwrap_or_else(|| Err(no_answer()));
        };
        let started = Instant::now();
        let verdict = match ask.is_asked() {
            true => memory.check_all(std::slice::from_ref(&ask.charge), self.now),
            false => Verdict::one(ask.unasked()),
        };
        let mut answer = Ok(verdict);
        count_hits(std::slice::from_ref(ask), &answer);
        self.apply_treatments(std::slice::from_ref(ask), &mut answer);
        self.counting().count(std::slice::from_ref(ask), std::slice::from_ref(&answer));
        self.enforcer.metrics().decision_seconds.observe(started.elapsed());
        answer
    }

    /// Answers one request: every charge is taken, or none.
    ///
    /// # Errors
    ///
    /// If the store fails and its policy does not answer in its place.
    pub(crate) async fn check(&self, asks: &[Ask<'_>]) -> Decided {
        if let [ask] = asks
            && ask.treatment != Treatment::Ban
        {
            return self.check_one(ask).await;
        }
        let started = Instant::now();
        let mut answer = self.check_together(asks, true).await;
        count_hits(asks, &answer);
        self.apply_treatments(asks, &mut answer);
        self.counting().count_verdict(asks, &answer);
        self.enforcer.metrics().decision_seconds.observe(started.elapsed());
        answer
    }

    /// What [`Self::check`] would answer, with nothing taken.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub(crate) async fn peek(&self, asks: &[Ask<'_>]) -> Decided {
        let mut answer = self.check_together(asks, false).await;
        self.apply_treatments(asks, &mut answer);
        answer
    }

    /// How long until `ask` would be allowed at each of these costs if nobody else asked; `None`
    /// where no wait helps. Takes nothing.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn waits(
        &self,
        ask: &Ask<'_>,
        costs: &[Cost],
    ) -> Result<Vec<Option<Duration>>, StoreError> {
        let store = self.enforcer.store();
        let charges = costs.iter().map(|cost| ask.charge.cost(*cost));
        let asked = charges.map(|charge| store.peek(&[charge], self.now)).collect();
        let wait = |verdict: Verdict| verdict.retry().map_or(Some(Duration::ZERO), Retry::after);
        at_once(asked).await.into_iter().map(|answer| answer.map(wait)).collect()
    }

    /// Takes as many units as there are, up to the cost of the charge. In shadow mode all of them
    /// are granted, whatever there was.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn take(&self, ask: &Ask<'_>) -> Result<Grant, StoreError> {
        let cost = ask.charge.cost;
        if !ask.is_asked() {
            return Ok(Grant::new(ask.unasked(), cost));
        }
        let is_trial = ask.treatment == Treatment::Shadow;
        let grant =
            match self.noting_failure(self.enforcer.store().take(&ask.charge, self.now)).await {
                Err(_) if is_trial => Grant::new(ask.unasked(), cost),
                answer => answer?,
            };
        let verdict = Verdict::one(grant.decision);
        let verdict = match grant.store_failure {
            Some(failure) => verdict.degraded_by(failure),
            None => verdict,
        };
        self.is_decided(1, &verdict);
        self.counting().count_decisions(std::slice::from_ref(ask), &verdict);
        if is_trial && grant.granted < cost.get() {
            ask.tally.shadow_denied.add(1);
            return Ok(Grant::new(Decision::Allow(grant.decision.snapshot()), cost));
        }
        Ok(grant)
    }

    /// Takes the charge's units whatever is left, of a request that was decided and counted.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn count(&self, ask: &Ask<'_>) -> Result<(), StoreError> {
        if ask.is_asked() {
            let charge = ask.charge.counted();
            let answer = self.noting_failure(self.enforcer.store().check(&[charge], self.now));
            let _: Verdict = answer.await?;
        }
        Ok(())
    }

    /// Gives the charge's units back.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn refund(&self, ask: &Ask<'_>) -> Result<Snapshot, StoreError> {
        if !ask.is_asked() {
            return Ok(ask.unasked().snapshot());
        }
        self.noting_failure(self.enforcer.store().refund(&ask.charge, self.now)).await
    }

    /// Forgets the charge's key under its policy.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn reset(&self, ask: &Ask<'_>) -> Result<(), StoreError> {
        self.noting_failure(self.enforcer.store().reset(&ask.charge, self.now)).await
    }

    /// Takes every charge if all are allowed, to be settled later. Charges on trial and of keys
    /// that are never limited are taken in any case: left out, there would be nothing to settle.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn reserve(&self, asks: &[Ask<'_>]) -> Result<Reserved, StoreError> {
        if asks.iter().any(|ask| ask.treatment == Treatment::Ban) {
            let verdict = self.check_together(asks, false).await?;
            return Ok(Reserved { verdict, reservation: None });
        }
        let charges: Vec<Charge<'_>> = asks.iter().map(reserved).collect();
        let reserved =
            self.noting_failure(self.enforcer.store().reserve(&charges, self.now)).await?;
        self.is_decided(charges.len(), &reserved.verdict);
        self.counting().count_decisions(asks, &reserved.verdict);
        Ok(reserved)
    }

    /// Settles a reservation at its real costs.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn commit(
        &self,
        id: ReservationId,
        costs: &[u64],
    ) -> Result<Settlement, StoreError> {
        self.noting_failure(self.enforcer.store().commit(id, costs, self.now)).await
    }

    /// Settles a reservation by giving everything back.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn cancel(&self, id: ReservationId) -> Result<Settlement, StoreError> {
        self.noting_failure(self.enforcer.store().cancel(id, self.now)).await
    }

    /// The store in this process, if it answers these at once: durable counts take a while.
    fn at_hand(&self, asks: &[Ask<'_>]) -> Option<&'a MemoryStore> {
        let is_durable = |ask: &Ask<'_>| ask.charge.policy.is_durable();
        let memory = self.enforcer.memory()?;
        let waits = self.enforcer.durable().is_some() && asks.iter().any(is_durable);
        (!waits).then_some(memory)
    }

    /// Whether the store answered all of them.
    async fn check_each_shared(&self, asks: &[Ask<'_>], answers: &mut Vec<Decided>) -> bool {
        let store = self.enforcer.store();
        let asked = asks.iter().filter(|ask| ask.is_asked());
        let asked = asked.map(|ask| store.check(&[ask.charge], self.now)).collect();
        let decided = at_once(asked).await;
        let all = self.are_answered(&decided);
        let mut decided = decided.into_iter();
        answers.extend(asks.iter().map(|ask| {
            let decided = if ask.is_asked() { decided.next() } else { None };
            let decided = decided.unwrap_or_else(|| Ok(Verdict::one(ask.unasked())));
            if ask.treatment == Treatment::Shadow { Ok(tried(ask, decided)) } else { decided }
        }));
        all
    }

    /// Decides the enforced asks together, or looks at them unless `takes`; then those in shadow
    /// mode, each on its own.
    async fn check_together(&self, asks: &[Ask<'_>], takes: bool) -> Decided {
        let started = self.enforcer.memory().is_none().then(Instant::now);
        let store = self.enforcer.store();
        let takes = takes && asks.iter().all(|ask| ask.treatment != Treatment::Ban);
        let enforced = treated(asks, Treatment::Enforce);
        let verdict = match enforced.is_empty() {
            true => Ok(Verdict::new(Vec::new())),
            false if takes => store.check(&enforced, self.now).await,
            false => store.peek(&enforced, self.now).await,
        };
        let mut all = self.is_answered(enforced.len(), &verdict);
        let verdict = verdict?;
        let takes = takes && verdict.is_allowed();
        let on_trial = treated(asks, Treatment::Shadow);
        let on_trial = on_trial.iter().map(|charge| match takes {
            true => store.check(&[*charge], self.now),
            false => store.peek(&[*charge], self.now),
        });
        let on_trial = at_once(on_trial.collect()).await;
        all &= self.are_answered(&on_trial);
        if let Some(started) = started.filter(|_| all) {
            self.enforcer.metrics().store_seconds.observe(started.elapsed());
        }
        let mut on_trial = on_trial.into_iter();
        let mut decided = verdict.decisions().iter().copied();
        let mut decisions = Vec::with_capacity(asks.len());
        for ask in asks {
            let decision = match ask.treatment {
                Treatment::Enforce => decided.next(),
                Treatment::Exempt | Treatment::Ban => Some(ask.unasked()),
                Treatment::Shadow => on_trial
                    .next()
                    .and_then(|answer| tried(ask, answer).decisions().first().copied()),
            };
            decisions.push(decision.ok_or_else(no_answer)?);
        }
        let mut decided = Verdict::new(decisions);
        if let (Some(by), Some(owner)) = (verdict.denied_by(), verdict.denied_by_owner()) {
            let enforced = |(_, ask): &(usize, &Ask<'_>)| ask.treatment == Treatment::Enforce;
            let denier = asks.iter().enumerate().filter(enforced).nth(by);
            if denier.map(|(index, _)| index) == decided.denied_by() {
                decided = decided.denied_by_owner_numbered(owner);
            }
        }
        Ok(if verdict.is_degraded() { decided.degraded() } else { decided })
    }

    /// Applies to a verdict what its asks say: shadow denials become allowances, and a failure of
    /// the store is told where a policy wants it told.
    fn apply_treatments(&self, asks: &[Ask<'_>], answer: &mut Decided) {
        if let Ok(verdict) = answer
            && !verdict.is_allowed()
        {
            let mut shadowed = false;
            for (ask, decision) in asks.iter().zip(verdict.decisions()) {
                if ask.treatment == Treatment::Shadow && !decision.is_allowed() {
                    ask.tally.shadow_denied.add(1);
                    shadowed = true;
                }
            }
            if shadowed {
                *verdict = unshadowed(asks, verdict);
            }
        }
        let told =
            |ask: &Ask<'_>| ask.treatment == Treatment::Enforce && ask.unavailable_on_store_error;
        if asks.iter().any(told) && answer.as_ref().is_ok_and(Verdict::is_degraded) {
            *answer = Err(StoreError::new(ErrorKind::Unavailable, "the store does not answer"));
        }
    }

    /// What counts the decisions.
    const fn counting(&self) -> Counting<'a> {
        Counting { tops: self.tops, now: self.now }
    }

    async fn noting_failure<T: Unpin>(&self, answer: Answer<T>) -> Result<T, StoreError> {
        answer.await.inspect_err(|error| self.note_error(1, error))
    }

    /// Whether the store answered all of these, of one charge each; those that it did not are
    /// counted.
    fn are_answered(&self, answers: &[Decided]) -> bool {
        let failed = answers.iter().filter(|answer| !self.is_answered(1, answer));
        failed.count() == 0
    }

    /// Whether the store answered for so many charges, whatever their policies said in its place;
    /// counted if it did not.
    fn is_answered(&self, charges: usize, answer: &Decided) -> bool {
        match answer {
            Ok(verdict) => self.is_decided(charges, verdict),
            Err(error) => {
                self.note_error(charges, error);
                false
            }
        }
    }

    /// Whether the store decided; counted if it did not.
    fn is_decided(&self, charges: usize, verdict: &Verdict) -> bool {
        let Some(failure) = verdict.store_failure() else { return true };
        self.enforcer.metrics().store_error(failure);
        self.enforcer.note_outage(charges as u64);
        false
    }

    fn note_error(&self, charges: usize, error: &StoreError) {
        self.enforcer.metrics().store_error(error.kind());
        // What the store refuses because of what was asked is no outage: anybody could make one.
        if error.is_transient() {
            self.enforcer.note_outage(charges as u64);
        }
    }
}

/// Counts the units of limits that count them.
fn count_hits(asks: &[Ask<'_>], answer: &Decided) {
    let Ok(verdict) = answer else { return };
    for (ask, decision) in asks.iter().zip(verdict.decisions()) {
        if let Some(hits) = &ask.tally.hits {
            let is_on_trial = ask.treatment == Treatment::Shadow;
            hits.count(ask.charge.cost.get(), decision, is_on_trial);
        }
    }
}

/// What a policy on trial says: it allows where the store fails. The charges that are enforced
/// stand, and an error would hide from the caller that they were taken.
fn tried(ask: &Ask<'_>, answer: Decided) -> Verdict {
    answer.unwrap_or_else(|_| Verdict::one(ask.unasked()).degraded())
}

/// The charge as it is reserved.
fn reserved<'a>(ask: &Ask<'a>) -> Charge<'a> {
    match ask.treatment {
        Treatment::Enforce | Treatment::Ban => ask.charge,
        Treatment::Shadow | Treatment::Exempt => ask.charge.counted(),
    }
}

fn treated<'a>(asks: &[Ask<'a>], treatment: Treatment) -> Vec<Charge<'a>> {
    asks.iter().filter(|ask| ask.treatment == treatment).map(|ask| ask.charge).collect()
}

fn unshadowed(asks: &[Ask<'_>], verdict: &Verdict) -> Verdict {
    let decisions =
        asks.iter().zip(verdict.decisions()).map(|(ask, decision)| match ask.treatment {
            Treatment::Shadow => Decision::Allow(decision.snapshot()),
            _ => *decision,
        });
    let allowed = Verdict::new(decisions.collect());
    if verdict.is_degraded() { allowed.degraded() } else { allowed }
}

/// Awaits answers side by side. A store is asked when its answer is first awaited: in order here,
/// and all before the first has come, so that they share its round trips.
async fn at_once(mut asked: Vec<Answer<Verdict>>) -> Vec<Decided> {
    let mut answers: Vec<Option<Decided>> = asked.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut all = Poll::Ready(());
        for (answer, asked) in answers.iter_mut().zip(&mut asked).filter(|(had, _)| had.is_none()) {
            match Pin::new(asked).poll(context) {
                Poll::Ready(decided) => *answer = Some(decided),
                Poll::Pending => all = Poll::Pending,
            }
        }
        all
    })
    .await;
    answers.into_iter().flatten().collect()
}

fn no_answer() -> StoreError {
    StoreError::new(ErrorKind::Misuse, "the store answered fewer charges than it was asked")
}
