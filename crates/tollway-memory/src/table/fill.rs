//! How full a table is, from a sample: to count every slot would read all of its memory.

use tollway_core::Timestamp;

use super::Table;
use crate::slot::Slot;

/// Buckets looked at: enough for an error of about one percent.
const SAMPLED: usize = 1_024;

impl<S: Slot> Table<S> {
    /// The share of slots whose key says something at `now`, 0 to 1.
    pub(crate) fn fill(&self, now: Timestamp) -> f64 {
        // Beyond what is in use there is nothing, and no memory to be touched.
        let buckets = self.in_use();
        let looked_at = SAMPLED.min(buckets);
        // Evenly over it: fingerprints are as good as random, so any buckets would do.
        let sample = (0..looked_at).flat_map(|turn| &self.buckets[turn * buckets / looked_at].0);
        let (mut slots, mut live) = (0u32, 0u32);
        for slot in sample {
            let view = slot.read();
            slots += 1;
            live += u32::from(view.tag != 0 && view.vacant_at > now);
        }
        let in_use = buckets as f64 / self.buckets.len() as f64;
        f64::from(live) / f64::from(slots.max(1)) * in_use
    }
}
