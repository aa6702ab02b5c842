//! Whose slot a newcomer takes when none is free: room belongs to policies.
//!
//! ```text
//!   the 128 slots nearest to the newcomer's home, all of them saying something
//!   | a a a a a a a a a a a b b b |     a and b are here, c comes: shares of 128 / 3 slots
//!     ^ c is below its share, a is furthest above its own: c takes the slot of an a,
//!       the one nearest to saying nothing, even if it has nothing left
//! ```
//!
//! Who is at or above its share takes only from itself and from others above theirs, and never a
//! key that has nothing left ([`WhenFull::Deny`]). So a policy that keeps within its share loses
//! nobody and is never refused, whatever the others do; only who is above it pays.
//!
//! Shares are judged where the newcomer looks anyway. Counts for the whole table would be written
//! by every insertion, and would say nothing about these slots.

use tollway_core::Timestamp;

use super::{Full, SLOTS, Table};
use crate::capacity::WhenFull;
use crate::owners::NUMBERS;
use crate::slot::{Slot, View};

/// Buckets in which shares are judged.
#[cfg(not(tollway_loom))]
pub(super) const JUDGED: usize = 32;
#[cfg(tollway_loom)]
pub(super) const JUDGED: usize = 2;

/// A slot that is in use, and whose it is.
#[derive(Clone, Copy)]
struct Tenant {
    index: usize,
    view: View,
    owner: u8,
}

/// The slots near a newcomer, and how many belong to whom.
struct Neighbourhood {
    tenants: [Option<Tenant>; JUDGED * SLOTS],
    counts: [u16; NUMBERS],
    /// What each owner is entitled to.
    share: u16,
}

impl Neighbourhood {
    fn tenants(&self) -> impl Iterator<Item = Tenant> + '_ {
        self.tenants.iter().map_while(|tenant| *tenant)
    }

    fn count(&self, owner: u8) -> u16 {
        self.counts[usize::from(owner)]
    }

    /// Who has the most, if that is more than its share.
    fn furthest_above(&self) -> Option<u8> {
        let most = self.tenants().map(|tenant| tenant.owner).max_by_key(|owner| self.count(*owner));
        most.filter(|owner| self.count(*owner) > self.share)
    }

    /// Of those that `may_go`, the one nearest to saying nothing; who has something left comes
    /// first.
    fn nearest(&self, may_go: impl Fn(&Tenant) -> bool) -> Option<Tenant> {
        self.tenants()
            .filter(may_go)
            .min_by_key(|Tenant { view, .. }| (view.limited, view.vacant_at))
    }
}

impl<S: Slot> Table<S> {
    /// The slot that a newcomer takes from somebody.
    pub(super) fn take_over(
        &self,
        home: usize,
        owner: u8,
        now: Timestamp,
        taken: impl Fn(usize) -> bool,
    ) -> Result<(usize, View), Full> {
        let near = self.neighbourhood(home, owner, taken);
        let lapsed = near.tenants().find(|tenant| tenant.view.vacant_at <= now);
        let tenant = lapsed.or_else(|| self.who_gives_way(&near, owner));
        tenant.map(|tenant| (tenant.index, tenant.view)).ok_or_else(|| {
            self.owners.note_refused(owner);
            let free_at = near.tenants().map(|tenant| tenant.view.vacant_at).min();
            Full { free_at: free_at.unwrap_or(Timestamp::MAX) }
        })
    }

    fn who_gives_way(&self, near: &Neighbourhood, owner: u8) -> Option<Tenant> {
        if near.count(owner) < near.share
            && let Some(above) = near.furthest_above()
        {
            return near.nearest(|tenant| tenant.owner == above);
        }
        let of_too_many =
            |tenant: &Tenant| tenant.owner == owner || near.count(tenant.owner) > near.share;
        match self.when_full {
            WhenFull::Deny => near.nearest(|tenant| of_too_many(tenant) && !tenant.view.limited),
            WhenFull::Forget => near.nearest(of_too_many).or_else(|| near.nearest(|_| true)),
        }
    }

    fn neighbourhood(
        &self,
        home: usize,
        newcomer: u8,
        taken: impl Fn(usize) -> bool,
    ) -> Neighbourhood {
        let mut near =
            Neighbourhood { tenants: [None; JUDGED * SLOTS], counts: [0; NUMBERS], share: 0 };
        let buckets = (0..JUDGED.min(self.buckets.len())).map(|probe| self.probed(home, probe));
        let indexes = buckets.flat_map(|bucket| (0..SLOTS).map(move |at| bucket * SLOTS + at));
        let mut seen = 0;
        for index in indexes.filter(|index| !taken(*index)) {
            let owner = self.owner_of(index);
            near.tenants[seen] = Some(Tenant { index, view: self.slot(index).read(), owner });
            near.counts[usize::from(owner)] += 1;
            seen += 1;
        }
        let others = near.counts.iter().filter(|count| **count > 0).count();
        let present = others + usize::from(near.count(newcomer) == 0);
        // More owners than slots: one slot each, for as many as there are.
        near.share = (seen / present).max(1) as u16;
        near
    }
}
