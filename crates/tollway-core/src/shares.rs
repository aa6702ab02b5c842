//! Shares: a tree of owners under one quota, with floors that are guaranteed and ceilings.
//!
//! Every owner with a floor has a bucket of its own that refills at the floor's rate, and so has
//! every owner with a ceiling; the quota itself is the bucket at the root. All are plain
//! [GCRA](crate::gcra), so everything is exact. What an owner takes from its floor is taken from
//! every floor above it and from the root, too. What it borrows is taken from the *lender*, the
//! nearest owner above it that has more left than it *keeps* for the floors of its children, and
//! from everybody above the lender:
//!
//! ```text
//!   root   |#####################.......|  1000/1m burst 1000; keeps the sizes of both floors
//!            ^ lent      ^ kept for the floors of `search` and `batch`
//!   search |########|                      floor 50%: nobody else takes from it
//!   batch  |###|                           floor 20%
//! ```
//!
//! **Invariants.**
//!
//! - *The root is never exceeded*: every unit admitted is charged to the root's bucket, which is
//!   asked.
//! - *What a floor has is there*: a bucket holds at least as much as the buckets of its children
//!   together. A charge takes from a parent what it takes from a child, or leaves the parent what
//!   it keeps, which is the size of all children's buckets; and a parent refills at least as fast.
//!   A ceiling's bucket likewise holds at least as much as the floor's beside it.
//! - *A floor is to be had within one refill*: who is denied while his bucket is not full waits for
//!   its rate alone. A bucket is as large as what its floor refills within `reclaim` (halved with
//!   each level of the tree), and nobody borrows from it.
//! - *Lent at once*: what the root has above what it keeps is anybody's. So a lone owner without a
//!   ceiling gets the root's whole rate.
//!
//! **Cost.** A charge looks at the buckets on its path, at most two for each of
//! [`Shares::DEPTH_MAX`] levels and the root's, however many owners there are.
//!
//! Rejected: to keep exactly what the children have left at the moment (more of a burst could be
//! lent, but every charge would have to look at every child); to let floors overdraw the root, as
//! traffic shapers do (the root would be exceeded by all bursts together); claims noted by whoever
//! is denied (a denial changes nothing).

mod percent;
mod request;
mod tree;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::algorithm::{Apply, Parameters};
use crate::carry::Used;
use crate::decision::{Decision, Retry, Snapshot};
use crate::gcra::{self, Gcra};
use crate::{Cost, Key, Policy, Quota, Timestamp};

pub use percent::{ParsePercentError, Percent};
pub use request::Expanded;

/// An owner as a configuration describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The key whose charges are this owner's.
    pub key: String,
    /// The owner above it; the quota itself if `None`.
    pub parent: Option<String>,
    /// The part of its parent's floor (of the quota, without a parent) that is guaranteed to it.
    pub floor: Option<Percent>,
    /// The part of its parent's ceiling (of the quota, without a parent) that it never exceeds; all
    /// of it if `None`.
    pub ceiling: Option<Percent>,
}

/// A tree of owners under one quota, checked and worked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The key under which every bucket of the tree is stored: one slot on a shared store.
    key: String,
    quota: Quota,
    reclaim: Duration,
    buckets: Vec<Bucket>,
    owners: Vec<Owner>,
    /// What is asked for each owner, from its own buckets to the root's; the last is for those who
    /// are no owners.
    paths: Vec<Vec<PathStep>>,
    by_key: BTreeMap<String, usize>,
    shared: SharedQuota,
}

/// One bucket of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bucket {
    policy: Policy,
    /// Whose it is; nobody's if it is the root.
    owner: Option<usize>,
}

/// A bucket on the way from an owner to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathStep {
    bucket: usize,
    role: Role,
}

/// What a bucket is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A floor's bucket, or the root's: it lends what it has beyond what it keeps for the floors of
    /// its children.
    Lender {
        /// So many units.
        keeps: u64,
    },
    /// A ceiling's bucket: what passes it on the way to a lender above leaves it what the floor
    /// beside it may take.
    Ceiling {
        /// So many units.
        keeps: u64,
    },
}

impl Role {
    /// What the bucket keeps.
    pub const fn keeps(self) -> u64 {
        match self {
            Self::Lender { keeps } | Self::Ceiling { keeps } => keeps,
        }
    }
}

/// What a charge to one bucket of a tree is, beside the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPart {
    /// What the bucket is asked for.
    pub role: Role,
    /// The number of the owner whose bucket it is; nobody's if it is the root.
    pub owner: Option<usize>,
}

impl Shares {
    /// How many levels of owners there may be below the root.
    pub const DEPTH_MAX: usize = 4;
    /// How many owners there may be: their buckets fit into one ledger of a shared store.
    pub const OWNERS_MAX: usize = 500;

    /// The tree that `owners` make under `quota`, for the policy called `name`. A floor that was
    /// not used has at once what it refills in `reclaim`; by default that is half of the time in
    /// which the quota refills its burst.
    ///
    /// # Errors
    ///
    /// Names the owner, the field, what was found and what was expected.
    pub fn new(
        name: &str,
        quota: Quota,
        reclaim: Option<Duration>,
        owners: Vec<Owner>,
    ) -> Result<Self, SharesError> {
        tree::build(name, quota, reclaim, owners)
    }

    /// The owners, in the order in which they were given.
    pub fn owners(&self) -> &[Owner] {
        &self.owners
    }

    /// The owner whose charges come under this key.
    pub fn owner(&self, key: Key<'_>) -> Option<usize> {
        let key = core::str::from_utf8(key.as_bytes()).ok()?;
        self.by_key.get(key).copied()
    }

    /// The quota that all of them share.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// How much an owner that was idle may have lent: what its floor refills in this time.
    pub const fn reclaim(&self) -> Duration {
        self.reclaim
    }

    /// What is guaranteed to an owner: the rate, and how much of it is there at once after a pause.
    pub fn floor(&self, owner: usize) -> Option<Quota> {
        self.quota_of(owner, |role| matches!(role, Role::Lender { .. }))
    }

    /// What an owner never exceeds, if that is less than what the owner above it may have.
    pub fn ceiling(&self, owner: usize) -> Option<Quota> {
        self.quota_of(owner, |role| matches!(role, Role::Ceiling { .. }))
    }

    fn quota_of(&self, owner: usize, is_it: impl Fn(Role) -> bool) -> Option<Quota> {
        let own =
            |link: &&PathStep| self.buckets[link.bucket].owner == Some(owner) && is_it(link.role);
        let link = self.paths.get(owner)?.iter().find(own)?;
        self.buckets[link.bucket].quota()
    }

    /// What is asked for `key`.
    fn path(&self, key: Key<'_>) -> &[PathStep] {
        let nobody = self.paths.len() - 1;
        &self.paths[self.owner(key).unwrap_or(nobody)]
    }

    /// The tree in short, as the algorithm of its policy.
    pub(crate) const fn shared(&self) -> SharedQuota {
        self.shared
    }
}

impl Bucket {
    fn quota(&self) -> Option<Quota> {
        match self.policy.algorithm() {
            crate::Algorithm::Gcra(gcra) => Some(gcra.quota()),
            _ => None,
        }
    }
}

/// The quota at the root of a tree of owners: what an [`Algorithm`](crate::Algorithm) says about
/// it. It decides as for somebody who is no owner; stores ask the [`Shares`] of the policy instead,
/// of which this is a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedQuota {
    root: Gcra,
    /// Units that are kept for floors.
    keeps: u64,
    /// Tells trees apart.
    tree: u64,
}

impl SharedQuota {
    const fn new(root: Gcra, keeps: u64, tree: u64) -> Self {
        Self { root, keeps, tree }
    }

    /// The quota.
    pub const fn quota(&self) -> Quota {
        self.root.quota()
    }

    /// What is asked of the root so that it has what it keeps afterwards.
    fn beyond_kept(&self, cost: Cost) -> Cost {
        Cost::new(self.keeps).map_or(cost, |keeps| cost.saturating_add(keeps))
    }
}

impl Apply for SharedQuota {
    type State = gcra::State;

    const NAME: &'static str = "shares";

    fn limit(&self) -> u64 {
        self.root.quota().burst()
    }

    fn window(&self) -> Option<(u64, Duration)> {
        Apply::window(&self.root)
    }

    /// The tree does not fit into numbers: they tell trees apart, and make none.
    fn numbers(&self) -> [u64; 3] {
        [self.tree, self.quota().units(), self.quota().burst()]
    }

    fn from_numbers(_: [u64; 3]) -> Option<Self> {
        None
    }

    fn share(&self, _: u32, _: u64) -> Option<Self> {
        None
    }

    fn from_parameters(given: &dyn Parameters) -> Option<Self> {
        given.refuse("algorithm", "shares need owners, which stand in a policy's file".to_string());
        None
    }

    fn decide(&self, it: &mut gcra::State, cost: Cost, id: u128, now: Timestamp) -> Decision {
        if let Some(retry) = self.retry(it, cost, now) {
            return Decision::Deny { snapshot: self.peek(it, now), retry };
        }
        Apply::decide(&self.root, it, cost, id, now)
    }

    fn count(&self, it: &mut gcra::State, cost: Cost, id: u128, now: Timestamp) -> Snapshot {
        Apply::count(&self.root, it, cost, id, now)
    }

    fn retry(&self, it: &gcra::State, cost: Cost, now: Timestamp) -> Option<Retry> {
        Apply::retry(&self.root, it, self.beyond_kept(cost), now)
    }

    fn peek(&self, it: &gcra::State, now: Timestamp) -> Snapshot {
        Apply::peek(&self.root, it, now)
    }

    fn refund(&self, it: &mut gcra::State, units: u64, at: Option<Timestamp>, now: Timestamp) {
        Apply::refund(&self.root, it, units, at, now);
    }

    fn vacant_at(&self, it: &gcra::State) -> Timestamp {
        Apply::vacant_at(&self.root, it)
    }

    fn clear(&self, it: &mut gcra::State, now: Timestamp) {
        Apply::clear(&self.root, it, now);
    }

    fn rewind(&self, it: &mut gcra::State, now: Timestamp) {
        Apply::rewind(&self.root, it, now);
    }

    fn used(&self, it: &gcra::State, at: Timestamp) -> Used {
        Apply::used(&self.root, it, at)
    }

    fn having_used(&self, used: Used, at: Timestamp) -> gcra::State {
        Apply::having_used(&self.root, used, at)
    }
}

impl fmt::Display for SharedQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, shared by owners", self.quota())
    }
}

/// Why owners do not make a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharesError {
    owner: Option<usize>,
    field: &'static str,
    problem: String,
}

impl SharesError {
    fn of_owner(owner: usize, field: &'static str, problem: impl Into<String>) -> Self {
        Self { owner: Some(owner), field, problem: problem.into() }
    }

    pub(crate) fn of_policy(field: &'static str, problem: impl Into<String>) -> Self {
        Self { owner: None, field, problem: problem.into() }
    }

    /// The number of the owner that is wrong, if it is an owner.
    pub const fn owner(&self) -> Option<usize> {
        self.owner
    }

    /// The field that is wrong, of the owner or of the policy.
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// What was found and what was expected.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for SharesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(owner) = self.owner {
            write!(f, "owners[{owner}].")?;
        }
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl core::error::Error for SharesError {}
