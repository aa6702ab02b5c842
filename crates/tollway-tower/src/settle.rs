//! Units reserved for a request under way, settled exactly once whatever becomes of it.
//!
//! ```text
//! reserve ──► handler ──► head of response ──► body … end
//!                │             └ costs by head known; settled here unless it waits for the end
//!                │                                   └ bytes counted, meter read: settled here
//!                └ dropped (client gone, handler failed): what was reserved stays charged
//! ```
//!
//! Settling happens on drop, so there is no path without it. Were an abandoned request free, a
//! client could guess passwords and hang up before each answer.

use std::sync::Arc;

use tollway_core::ReservationId;

use crate::ResponseHead;
use crate::demand::{Demand, LIMITS_MAX, LimitSet};
use crate::gate::{Charging, Gate, detach};
use crate::guard::guarded;
use crate::limit::{Meter, Settle};

pub(crate) struct Open {
    gate: Arc<Gate>,
    id: ReservationId,
    limits: LimitSet,
    costs: [u64; LIMITS_MAX],
    meter: Option<Meter>,
    /// Bytes of the body so far; `None` until there is a response.
    bytes: Option<u64>,
}

impl Open {
    pub(crate) fn new(gate: &Arc<Gate>, id: ReservationId, demand: &Demand) -> Self {
        let mut costs = [0; LIMITS_MAX];
        for (slot, cost) in costs.iter_mut().zip(demand.costs()) {
            *slot = cost;
        }
        let limits = demand.limits();
        let metered = |index| matches!(gate.settle_of(index), Some(Settle::Metered));
        let meter = limits.indices().any(metered).then(Meter::new);
        Self { gate: Arc::clone(gate), id, limits, costs, meter, bytes: None }
    }

    pub(crate) fn meter(&self) -> Option<&Meter> {
        self.meter.as_ref()
    }

    /// The response has begun: costs that its head decides are known now.
    pub(crate) fn begin_response(&mut self, head: &ResponseHead<'_>) {
        self.bytes = Some(0);
        for (index, cost) in self.limits.indices().zip(&mut self.costs) {
            if let Some(Settle::Head(real)) = self.gate.settle_of(index) {
                // A function that panics has not said otherwise: the reserved cost stays.
                *cost = guarded(|| real(head, *cost)).unwrap_or(*cost);
            }
        }
    }

    pub(crate) fn count_bytes(&mut self, len: usize) {
        self.bytes = self.bytes.map(|bytes| bytes.saturating_add(len as u64));
    }

    fn settle(&mut self) {
        let limiter = &self.gate.limiter;
        if self.gate.charging == Charging::Hold {
            return limiter.release(self.id);
        }
        let reported = self.meter.as_ref().and_then(Meter::reported);
        let mut len = 0;
        for (index, cost) in self.limits.indices().zip(&mut self.costs) {
            len += 1;
            match self.gate.settle_of(index) {
                Some(Settle::Bytes) => *cost = self.bytes.unwrap_or(*cost),
                Some(Settle::Metered) => *cost = reported.unwrap_or(*cost),
                Some(Settle::Head(_)) | None => {}
            }
        }
        let (id, costs) = (self.id, &self.costs[..len]);
        detach(limiter.commit(id, costs));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.settle();
    }
}
