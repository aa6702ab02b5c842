//! Units of calls that are not answered yet, by job: released once, by whom holds them.

use std::collections::BTreeMap;

/// Units in flight by job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlight {
    jobs: BTreeMap<u64, u32>,
    units: u64,
}

impl InFlight {
    /// How many units.
    pub(crate) const fn units(&self) -> u64 {
        self.units
    }

    /// Who holds how many units.
    #[cfg(feature = "redb")]
    pub(crate) fn held(&self) -> impl ExactSizeIterator<Item = (u64, u32)> + '_ {
        self.jobs.iter().map(|(job, units)| (*job, *units))
    }

    /// Whether `job` holds anything.
    pub(crate) fn is_held_by(&self, job: u64) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Frees what is held by others than those that `runs` says.
    #[cfg(feature = "redb")]
    pub(crate) fn retain(&mut self, runs: impl Fn(u64) -> bool) {
        self.jobs.retain(|job, _| runs(*job));
        self.units = self.jobs.values().map(|units| u64::from(*units)).sum();
    }

    pub(crate) fn hold(&mut self, job: u64, units: u32) {
        if self.jobs.insert(job, units).is_none() {
            self.units += u64::from(units);
        }
    }

    /// Frees what `job` holds; how many units, zero if none.
    pub(crate) fn release(&mut self, job: u64) -> u32 {
        let units = self.jobs.remove(&job).unwrap_or(0);
        self.units -= u64::from(units);
        units
    }
}
