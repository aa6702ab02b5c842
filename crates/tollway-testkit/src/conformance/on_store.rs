//! Any store whose answers are ready at once, as a subject.

use std::collections::HashMap;
use std::sync::Arc;

use tollway_core::{
    Answer, Charge, Decision, Grant, Policy, ReservationId, Reserved, Store, Timestamp,
};

use super::{Ask, Failure, Figures, Operation, Outcome, Subject};

/// A store, made anew for each scenario.
pub struct OnStore<F> {
    make: F,
    store: Arc<dyn Store>,
    reservations: HashMap<String, ReservationId>,
}

impl<F: Fn() -> Arc<dyn Store>> OnStore<F> {
    /// The stores that `make` makes.
    pub fn new(make: F) -> Self {
        let store = make();
        Self { make, store, reservations: HashMap::new() }
    }

    /// A name that nobody was given settles nothing, which is what the store shall say.
    fn reservation(&self, label: &str) -> ReservationId {
        self.reservations.get(label).copied().unwrap_or(ReservationId(0))
    }

    fn reserve(&mut self, label: &str, reserved: Reserved, operation: &Operation) -> Outcome {
        let outcome = Outcome::of_verdict(&reserved.verdict, operation);
        let Some(reservation) = reserved.reservation else { return outcome };
        self.reservations.insert(label.to_owned(), reservation.id);
        Outcome { expires_after: Some(reservation.expires_after), ..outcome }
    }
}

impl<F: Fn() -> Arc<dyn Store>> Subject for OnStore<F> {
    fn begin(&mut self, _policies: &[Arc<Policy>], _base: Timestamp) -> Result<(), Failure> {
        self.store = (self.make)();
        self.reservations.clear();
        Ok(())
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        let store = Arc::clone(&self.store);
        match operation {
            Operation::Check(asks) => {
                let verdict = ready(store.check(&charges(asks), at))?;
                Ok(Outcome::of_verdict(&verdict, operation))
            }
            Operation::Peek(asks) => {
                let verdict = ready(store.peek(&charges(asks), at))?;
                Ok(Outcome::of_verdict(&verdict, operation))
            }
            Operation::Take(ask) => Ok(granted(ready(store.take(&ask.charge(), at))?, ask)),
            Operation::Refund(ask) => {
                Ok(Outcome::of_snapshot(ready(store.refund(&ask.charge(), at))?))
            }
            Operation::Reset(ask) => {
                ready(store.reset(&ask.charge(), at))?;
                Ok(Outcome::default())
            }
            Operation::Reserve { label, asks } => {
                let reserved = ready(store.reserve(&charges(asks), at))?;
                Ok(self.reserve(label, reserved, operation))
            }
            Operation::Commit { label, costs } => {
                let settlement = ready(store.commit(self.reservation(label), costs, at))?;
                Ok(Outcome::of_settlement(settlement))
            }
            Operation::Cancel { label } => {
                Ok(Outcome::of_settlement(ready(store.cancel(self.reservation(label), at))?))
            }
        }
    }
}

fn charges(asks: &[Ask]) -> Vec<Charge<'_>> {
    asks.iter().map(Ask::charge).collect()
}

/// The outcome of a partial grant of what `ask` asked for.
pub(super) fn granted(grant: Grant, ask: &Ask) -> Outcome {
    let Grant { granted, decision, .. } = grant;
    let denied = matches!(decision, Decision::Deny { .. });
    Outcome {
        allowed: Some(!denied),
        denied_by: denied.then(|| ask.policy().name().to_owned()),
        figures: vec![Figures::from(&decision)],
        granted: Some(granted),
        ..Outcome::default()
    }
}

fn ready<T>(answer: Answer<T>) -> Result<T, Failure> {
    match answer {
        Answer::Ready(result) => Ok(result?),
        Answer::Pending(_) | Answer::Taken => {
            Err("the store's answers are not ready at once".into())
        }
    }
}
