//! The gate that all clones of a service share: it admits a request, refuses it, or says later.
//!
//! ```text
//! head ─► exempt? ─► Demand (keys, costs) ─► store: check or reserve ─┬─ now ──► Pass | Refuse
//!                                                                     └─ later ─► Later (boxed)
//! ```
//!
//! A store that answers at once takes a request through here without an allocation of ours.

use std::cmp::Reverse;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use tollway_core::fields::{Denied, Report, Standing};
use tollway_core::{
    Answer, Charge, Decision, ErrorKind, OnStoreError, Policy, ReservationId, Reserved, StoreError,
    StoreLimiter, Verdict,
};

use crate::demand::{Demand, Gated, LIMITS_MAX, LimitSet, charged, write_key};
use crate::guard::guarded;
use crate::keys::KeyBuf;
use crate::limit::{Predicate, Settle};
use crate::outage::Outage;
use crate::refusal::{Reason, Refusal, Refusals};
use crate::reply::Reply;
use crate::settle::Open;
use crate::wait::Waiting;
use crate::{Head, Meter};

pub(crate) type Observer = Box<dyn Fn(&Observation<'_>) + Send + Sync>;
pub(crate) type Later = Pin<Box<dyn Future<Output = Passed> + Send>>;
/// A request let through, with what there is to say and settle about it if anything, or refused.
pub(crate) type Passed = Result<Option<Passage>, Refused>;

/// What one limit decided about one request, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// What it decided.
    pub decision: Decision,
    /// Whether the limit only counts: then a denial did not refuse the request.
    pub shadow: bool,
    /// Whether a failure policy answered in place of the store.
    pub degraded: bool,
}

pub(crate) struct Gate {
    pub(crate) limiter: StoreLimiter,
    pub(crate) limits: Box<[Gated]>,
    pub(crate) shadows: Box<[Gated]>,
    pub(crate) charging: Charging,
    pub(crate) reply: Reply,
    pub(crate) refusals: Refusals,
    pub(crate) exempt: Vec<Predicate>,
    pub(crate) waiting: Option<Waiting>,
    pub(crate) sheds: bool,
    pub(crate) observer: Option<Observer>,
    pub(crate) outage: Outage,
    /// Whether there is one limit, of one unit, for every request, and nobody looks on.
    pub(crate) is_plain: bool,
}

/// How units are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charging {
    /// At once and for good.
    Check,
    /// Reserved, and settled by the response's head.
    SettleAtHead,
    /// Reserved, and settled when the response body ends.
    SettleAtEnd,
    /// Held until the response body ends, then given back: concurrency.
    Hold,
}

impl Charging {
    pub(crate) fn until_end(self) -> bool {
        matches!(self, Self::SettleAtEnd | Self::Hold)
    }
}

pub(crate) enum Admission {
    /// Let through, with nothing to say and settle, if any limit applies at all.
    Free,
    Pass(Passage),
    Refuse(Refused),
    Later(Later),
}

/// A request that was let through, and what its response must say and settle.
pub(crate) struct Passage {
    pub(crate) gate: Arc<Gate>,
    pub(crate) limits: LimitSet,
    pub(crate) verdict: Verdict,
    pub(crate) open: Option<Box<Open>>,
}

impl Passage {
    /// The meter a handler may report to, if a limit asks for one.
    pub(crate) fn meter(&self) -> Option<&Meter> {
        self.open.as_ref().and_then(|open| open.meter())
    }
}

/// A request that was not let through.
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    pub(crate) limits: LimitSet,
    pub(crate) verdict: Option<Verdict>,
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Self { reason, limits: LimitSet::default(), verdict: None }
    }
}

/// What a store took, by either way of asking.
struct Taken {
    verdict: Verdict,
    reservation: Option<ReservationId>,
}

impl From<Verdict> for Taken {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, reservation: None }
    }
}

impl From<Reserved> for Taken {
    fn from(reserved: Reserved) -> Self {
        let reservation = reserved.reservation.map(|reservation| reservation.id);
        Self { verdict: reserved.verdict, reservation }
    }
}

/// A question to the store that takes a while.
enum Question {
    Check(Answer<Verdict>),
    Reserve(Answer<Reserved>),
}

impl Question {
    async fn answer(self) -> Result<Taken, StoreError> {
        match self {
            Self::Check(answer) => answer.await.map(Taken::from),
            Self::Reserve(answer) => answer.await.map(Taken::from),
        }
    }
}

/// How far a request came before it had to wait.
enum First {
    /// Others with the same keys wait already, and must not be overtaken.
    Unasked,
    /// The store was asked and has not answered yet.
    Asked(Question),
    /// The store refused.
    Refused(Refused),
}

type Answered = Result<Result<Taken, StoreError>, Question>;

impl Gate {
    #[inline]
    pub(crate) fn admit(self: &Arc<Self>, head: &Head<'_>) -> Admission {
        match &*self.limits {
            [only] if self.is_plain => self.admit_plain(only, head),
            _ => self.admit_any(head),
        }
    }

    /// The short way of the commonest layer: nothing is kept that only others need.
    #[inline(always)]
    fn admit_plain(self: &Arc<Self>, only: &Gated, head: &Head<'_>) -> Admission {
        let mut key = KeyBuf::new();
        match write_key(&only.limit, head, &mut key) {
            Ok(true) => {}
            Ok(false) => return Admission::Free,
            Err(reason) => return Admission::Refuse(reason.into()),
        }
        let charge = Charge::new(&only.policy, charged(key.bytes()));
        if self.reply.is_silent() {
            let Some(answer) = self.limiter.admit(&charge) else {
                self.outage.over();
                return Admission::Free;
            };
            return self.admit_answered(Demand::of_one(key), answer);
        }
        match self.limiter.check(slice::from_ref(&charge)) {
            Answer::Ready(Ok(verdict)) if verdict.is_allowed() => {
                self.outage.over();
                let (gate, limits) = (Arc::clone(self), LimitSet::FIRST);
                Admission::Pass(Passage { gate, limits, verdict, open: None })
            }
            answer => self.admit_answered(Demand::of_one(key), answer),
        }
    }

    /// Anything but an allowance at once.
    #[cold]
    #[inline(never)]
    fn admit_answered(self: &Arc<Self>, demand: Demand, answer: Answer<Verdict>) -> Admission {
        match answer {
            Answer::Ready(verdict) => match self.judge(&demand, verdict.map(Taken::from)) {
                Ok(passage) => passage.map_or(Admission::Free, Admission::Pass),
                Err(refused) => Admission::Refuse(refused),
            },
            later => Admission::Later(self.later(demand, First::Asked(Question::Check(later)))),
        }
    }

    #[inline(never)]
    fn admit_any(self: &Arc<Self>, head: &Head<'_>) -> Admission {
        let mut demand = Demand::new();
        match self.fill(&mut demand, head) {
            Ok(()) if demand.is_empty() => return Admission::Free,
            Ok(()) => {}
            Err(reason) => return Admission::Refuse(reason.into()),
        }
        if let Some(waiting) = &self.waiting
            && waiting.has_line(&demand)
        {
            return Admission::Later(self.later(demand, First::Unasked));
        }
        match self.ask(&demand) {
            Err(question) => Admission::Later(self.later(demand, First::Asked(question))),
            Ok(taken) => match self.judge(&demand, taken) {
                Ok(passage) => passage.map_or(Admission::Free, Admission::Pass),
                Err(refused) if self.waiting.is_some() => {
                    Admission::Later(self.later(demand, First::Refused(refused)))
                }
                Err(refused) => Admission::Refuse(refused),
            },
        }
    }

    /// Fills in what the request asks of the enforced limits: nothing if it is exempt.
    #[inline(always)]
    fn fill(&self, demand: &mut Demand, head: &Head<'_>) -> Result<(), Reason> {
        for exempt in &self.exempt {
            if guarded(|| exempt(head)).map_err(|_| Reason::Panicked)? {
                return Ok(());
            }
        }
        if !self.shadows.is_empty() {
            self.shadow(head);
        }
        demand.fill(&self.limits, head, &**self.limiter.clock())
    }

    /// Asks the shadow limits one by one: none may keep another, or the request, from passing.
    fn shadow(&self, head: &Head<'_>) {
        for shadow in self.shadows.chunks(1) {
            let mut demand = Demand::new();
            let clock = &**self.limiter.clock();
            if demand.fill(shadow, head, clock).is_err() || demand.is_empty() {
                continue;
            }
            match demand.with_charges(shadow, |charges| self.limiter.check(charges)) {
                Answer::Ready(Ok(verdict)) => {
                    self.observe(shadow, &demand.limits(), &verdict, true)
                }
                answer => detach(answer),
            }
        }
    }

    #[inline(always)]
    fn ask(&self, demand: &Demand) -> Answered {
        demand.with_charges(&self.limits, |charges| {
            if self.charging != Charging::Check {
                return self.reserve(charges);
            }
            match self.limiter.check(charges) {
                Answer::Ready(verdict) => Ok(verdict.map(Taken::from)),
                later => Err(Question::Check(later)),
            }
        })
    }

    #[inline(never)]
    fn reserve(&self, charges: &[Charge<'_>]) -> Answered {
        match self.limiter.reserve(charges) {
            Answer::Ready(reserved) => Ok(reserved.map(Taken::from)),
            later => Err(Question::Reserve(later)),
        }
    }

    #[inline(always)]
    fn judge(self: &Arc<Self>, demand: &Demand, taken: Result<Taken, StoreError>) -> Passed {
        let limits = demand.limits();
        let Taken { verdict, reservation } = match taken {
            Ok(taken) => taken,
            Err(error) => return self.judge_outage(limits, &error),
        };
        self.outage.over();
        if self.observer.is_some() {
            self.observe(&self.limits, &limits, &verdict, false);
        }
        if !verdict.is_allowed() {
            let reason = self.reason(&limits, &verdict);
            return Err(Refused { reason, limits, verdict: Some(verdict) });
        }
        let open = reservation.map(|id| Box::new(Open::new(self, id, demand)));
        if open.is_none() && self.reply.is_silent() {
            return Ok(None);
        }
        Ok(Some(Passage { gate: Arc::clone(self), limits, verdict, open }))
    }

    /// Why a verdict denies: a quota is spent, be it this process's share, or a policy denies
    /// without its store.
    fn reason(&self, limits: &LimitSet, verdict: &Verdict) -> Reason {
        let denier = verdict.denied_by().and_then(|by| limits.policies(&self.limits).nth(by));
        let is_share = denier.is_some_and(|policy| {
            matches!(
                policy.store_error(),
                OnStoreError::Local { .. } | OnStoreError::AllowThenLocal { .. }
            )
        });
        if verdict.is_degraded() && !is_share { Reason::Store } else { Reason::Quota }
    }

    fn observe(&self, limits: &[Gated], set: &LimitSet, verdict: &Verdict, shadow: bool) {
        let Some(observer) = &self.observer else { return };
        for (policy, &decision) in set.policies(limits).zip(verdict.decisions()) {
            let policy = policy.name();
            let degraded = verdict.is_degraded();
            let observation = Observation { policy, decision, shadow, degraded };
            // An observer that panics misses an observation; the request is not its business.
            let _ = guarded(|| observer(&observation));
        }
    }

    pub(crate) fn settle_of(&self, index: usize) -> Option<&Settle> {
        self.limits[index].limit.settle.as_ref()
    }

    /// The store failed: each policy says whether that lets a request pass, and for how long.
    ///
    /// `Local` is kept by the stores that can: Redis and a remote service answer by this process's
    /// share before an error gets here. With a store that has no shares it denies, and so does
    /// everything where the question itself was wrong: no outage excuses that.
    #[cold]
    fn judge_outage(&self, limits: LimitSet, error: &StoreError) -> Passed {
        let now = self.limiter.clock().now();
        let lasted = now.since(self.outage.began(now));
        let allows = |policy: &Policy| {
            matches!(policy.store_error().once_gone_for(lasted), OnStoreError::Allow { .. })
        };
        if error.kind() != ErrorKind::Misuse && limits.policies(&self.limits).all(allows) {
            return Ok(None);
        }
        Err(Refused { reason: Reason::Store, limits, verdict: None })
    }

    /// Finishes what takes a while: a store that answers later, a denial that is waited out.
    #[cold]
    fn later(self: &Arc<Self>, demand: Demand, first: First) -> Later {
        let gate = Arc::clone(self);
        Box::pin(async move {
            let refused = match first {
                First::Unasked => None,
                First::Refused(refused) => Some(refused),
                First::Asked(question) => match gate.judge(&demand, question.answer().await) {
                    Err(refused) => Some(refused),
                    passed => return passed,
                },
            };
            match (&gate.waiting, refused) {
                (Some(waiting), refused) => waiting.out(&gate, &demand, refused).await,
                (None, Some(refused)) => Err(refused),
                (None, None) => gate.check_again(&demand).await,
            }
        })
    }

    /// Asks the store once more.
    pub(crate) async fn check_again(self: &Arc<Self>, demand: &Demand) -> Passed {
        match self.ask(demand) {
            Ok(taken) => self.judge(demand, taken),
            Err(question) => self.judge(demand, question.answer().await),
        }
    }

    /// What the store would answer now: the refusal, if it would refuse.
    pub(crate) async fn look(self: &Arc<Self>, demand: &Demand) -> Option<Refused> {
        let answer = demand.with_charges(&self.limits, |charges| self.limiter.peek(charges));
        match answer.await {
            Ok(verdict) if verdict.is_allowed() => None,
            Ok(verdict) => {
                let limits = demand.limits();
                Some(Refused { reason: Reason::Quota, limits, verdict: Some(verdict) })
            }
            Err(error) => self.judge_outage(demand.limits(), &error).err(),
        }
    }

    /// The response to a refused request.
    pub(crate) fn refuse(&self, head: &Head<'_>, refused: &Refused) -> Response<Bytes> {
        let violated = self.violated(refused);
        let retry = refused.verdict.as_ref().and_then(|verdict| verdict.retry()?.after());
        let status = self.refusals.status_of(refused.reason);
        let refusal = Refusal { reason: refused.reason, status, violated: &violated, retry };
        let mut response = self.refusals.respond(&refusal, head.is_grpc());
        if let Some(verdict) = &refused.verdict {
            let denied = verdict.denied_by().map(|by| Denied { by, retry });
            self.tell(&refused.limits, verdict, denied, response.headers_mut());
        }
        response
    }

    /// The policies that denied, each once, the one to wait for longest first.
    fn violated<'a>(&'a self, refused: &'a Refused) -> Vec<&'a str> {
        let decisions = refused.verdict.iter().flat_map(|verdict| verdict.decisions());
        let decided = refused.limits.policies(&self.limits).zip(decisions);
        let denied =
            decided.filter_map(|(policy, decision)| Some((decision.retry()?, policy.name())));
        let mut denied: Vec<_> = denied.collect();
        denied.sort_by_key(|&(retry, _)| Reverse(retry));
        let mut names = Vec::new();
        for (_, name) in denied {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Writes how the limits in `set` stand into `headers`.
    pub(crate) fn tell(
        &self,
        set: &LimitSet,
        verdict: &Verdict,
        denied: Option<Denied>,
        headers: &mut HeaderMap,
    ) {
        let decisions = verdict.decisions();
        if decisions.is_empty() {
            return;
        }
        let epoch = match self.reply.dialect.tells_epoch() {
            true => Duration::from_nanos(self.limiter.clock().now().as_nanos()),
            false => Duration::ZERO,
        };
        let decided = set.policies(&self.limits).zip(decisions);
        let mut standings =
            decided.map(|(policy, decision)| Standing::new(policy, decision.snapshot()));
        let Some(first) = standings.next() else { return };
        let mut emit = |standings: &[Standing<'_>]| {
            let report = Report { standings, denied, epoch };
            self.reply.emit(&report, self.limits.len(), headers);
        };
        // Most requests are one charge, which needs no list; and the others' fits on the stack.
        if decisions.len() == 1 {
            return emit(slice::from_ref(&first));
        }
        let mut all = [first; LIMITS_MAX];
        for (place, standing) in all[1..].iter_mut().zip(standings) {
            *place = standing;
        }
        emit(&all[..decisions.len().min(LIMITS_MAX)]);
    }
}

/// Lets an answer nobody waits for finish on the runtime. Without one it is dropped, which a store
/// survives: a reservation then ends by its policy's terms.
pub(crate) fn detach<T: Send + 'static>(answer: Answer<T>) {
    if let Answer::Pending(future) = answer
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn(future);
    }
}
