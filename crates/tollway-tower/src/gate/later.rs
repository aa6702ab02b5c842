//! What takes a while or goes wrong: stores that answer later, denials waited out, outages.

use std::sync::Arc;

use tollway_core::{Answer, ErrorKind, OnStoreError, Reserved, StoreError, Verdict};

use super::{Gate, Later, Passed, Reason, Refused, Taken};
use crate::demand::{Demand, LimitSet};

/// A question to the store that takes a while.
pub(super) enum Question {
    Check(Answer<Verdict>),
    Reserve(Answer<Reserved>),
}

impl Question {
    pub(super) async fn answer(self) -> Result<Taken, StoreError> {
        match self {
            Self::Check(answer) => answer.await.map(Taken::from),
            Self::Reserve(answer) => answer.await.map(Taken::from),
        }
    }
}

/// How far a request came before it had to wait.
pub(super) enum First {
    /// Others with the same keys wait already, and must not be overtaken.
    Unasked,
    /// The store was asked and has not answered yet.
    Asked(Question),
    /// The store refused.
    Refused(Refused),
}

impl Gate {
    /// The store failed: each policy says whether that lets a request pass, and for how long.
    ///
    /// `Local` is kept by the stores that can: Redis and a remote service answer by this process's
    /// share before an error gets here. With a store that has no shares it denies, and so does
    /// everything where the question itself was wrong: no outage excuses that.
    #[cold]
    pub(super) fn judge_outage(&self, limits: LimitSet, error: &StoreError) -> Passed {
        let now = self.limiter.clock().now();
        let lasted = now.since(self.outage.began(now));
        let allows = |index: usize| {
            let policy = &self.limits[index].policy;
            matches!(policy.store_error().once_gone_for(lasted), OnStoreError::Allow { .. })
        };
        if error.kind() != ErrorKind::Misuse && limits.indices().all(allows) {
            return Ok(None);
        }
        Err(Refused { reason: Reason::Store, limits, verdict: None })
    }

    /// Finishes what takes a while: a store that answers later, a denial that is waited out.
    #[cold]
    pub(super) fn later(self: &Arc<Self>, demand: Demand, first: First) -> Later {
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
