//! What cells are under other numbers.

use super::{Cell, SlidingWindow, State};
use crate::Timestamp;
use crate::carry::{OnChange, scaled};

impl SlidingWindow {
    /// The cells of a window whose numbers were `old`: each counts as taken at the last moment of
    /// its tick. What is older than the new period no longer counts, as if the new numbers had
    /// always been in force.
    pub(crate) fn carry_cells(
        &self,
        old: &Self,
        state: &State,
        rule: OnChange,
        at: Timestamp,
    ) -> State {
        let as_of = self.tick(at);
        let mut carried = State { as_of, ..State::default() };
        let (mut before, mut shared) = (0u128, 0u128);
        for cell in state.cells.iter().skip(old.live(state, at).dead) {
            before += u128::from(cell.units);
            // The sum is rounded, not each cell: a thousand cells would cost a thousand units.
            let sum = match rule {
                OnChange::Proportional => scaled(before, self.limit, old.limit),
                _ => before,
            };
            let last = old.start_of(u128::from(cell.tick) + 1).as_nanos().saturating_sub(1);
            let tick = self.tick(Timestamp::from_nanos(last)).min(as_of);
            let units = u64::try_from(sum - shared).unwrap_or(u64::MAX);
            if units > 0 && !self.is_dead(&Cell { tick, units }, as_of) {
                carried.add_in_order(tick, units);
            }
            shared = sum;
        }
        while carried.cells.len() as u64 > self.cells_max() {
            carried.merge_oldest();
        }
        carried
    }
}
