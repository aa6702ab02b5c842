//! A policy: a named quota with its algorithm and what happens when things go wrong.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU16;
use core::time::Duration;

use crate::gcra::Gcra;
use crate::shares::{Owner, Shares, SharesError};
use crate::{Algorithm, OnChange, ParseQuotaError, Quota};

/// A named quota with its algorithm, its failure mode and the terms of its reservations.
///
/// ```
/// use tollway_core::{Algorithm, Policy};
///
/// let policy = Policy::parse("api", "100/1m burst 20")?;
/// assert_eq!(policy.name(), "api");
/// assert!(matches!(policy.algorithm(), Algorithm::Gcra(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: String,
    algorithm: Algorithm,
    on_store_error: OnStoreError,
    reservations: ReservationTerms,
    parts: Option<NonZeroU16>,
    on_change: OnChange,
    is_plan: bool,
    durable_for: Option<Duration>,
    shares: Option<Arc<Shares>>,
    id: u64,
    name_id: u64,
    family_id: u64,
    numbers_mark: u64,
}

/// What a policy answers when the store does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Allow, for at most this long without a break; then deny.
    Allow {
        /// How long the store may be gone before this policy starts to deny.
        at_most: Duration,
    },
    /// Deny.
    Deny,
    /// Enforce this process's share of the quota in process: one in `shares`.
    Local {
        /// How many processes share the quota.
        shares: u32,
    },
    /// Allow, for at most this long without a break; then enforce this process's share.
    AllowThenLocal {
        /// How long the store may be gone before this process's share is enforced.
        at_most: Duration,
        /// How many processes share the quota.
        shares: u32,
    },
}

impl OnStoreError {
    /// What it comes to once the store has been gone for `lasted`: to allow, to deny, or a share.
    #[must_use]
    pub fn once_gone_for(self, lasted: Duration) -> Self {
        match self {
            Self::Allow { at_most } if lasted > at_most => Self::Deny,
            Self::AllowThenLocal { at_most, shares } if lasted > at_most => Self::Local { shares },
            Self::AllowThenLocal { at_most, .. } => Self::Allow { at_most },
            other => other,
        }
    }
}

/// What becomes of units that were reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationTerms {
    /// How long a reservation may stay open.
    pub ttl: Duration,
    /// What happens when it was neither committed nor cancelled by then.
    pub on_expiry: OnExpiry,
}

/// What an expired reservation does with its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExpiry {
    /// They are given back, as if cancelled.
    Return,
    /// They stay taken, as if committed.
    Keep,
}

impl Default for ReservationTerms {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(60), on_expiry: OnExpiry::Return }
    }
}

impl Policy {
    /// Where the bits of [`Self::numbers_mark`] are.
    pub const NUMBERS_MARK: u64 = 0xff_ffff << 20;

    /// The longest name, in bytes.
    pub const NAME_LEN_MAX: usize = 128;

    /// A policy that enforces `algorithm`, denies when the store fails, and returns expired
    /// reservations after a minute.
    ///
    /// # Errors
    ///
    /// If the name is empty, longer than [`Self::NAME_LEN_MAX`] bytes, or not printable ASCII
    /// without quotes and backslashes: it is sent in header fields as it is.
    pub fn new(
        name: impl Into<String>,
        algorithm: impl Into<Algorithm>,
    ) -> Result<Self, PolicyError> {
        let name = name.into();
        let printable = |byte: u8| (0x20..=0x7e).contains(&byte) && byte != b'"' && byte != b'\\';
        if name.is_empty() || name.len() > Self::NAME_LEN_MAX || !name.bytes().all(printable) {
            return Err(PolicyError::Name);
        }
        let algorithm: Algorithm = algorithm.into();
        let mut policy = Self {
            name,
            algorithm,
            on_store_error: OnStoreError::Deny,
            reservations: ReservationTerms::default(),
            parts: None,
            on_change: OnChange::default(),
            is_plan: false,
            durable_for: None,
            shares: None,
            id: 0,
            name_id: 0,
            family_id: 0,
            numbers_mark: mark(&algorithm),
        };
        policy.id = identity(&policy);
        policy.name_id = fnv(policy.name.bytes());
        policy.family_id = policy.name_id;
        Ok(policy)
    }

    /// A policy that enforces a quota given as text by GCRA.
    ///
    /// # Errors
    ///
    /// If the name or the text is not valid.
    pub fn parse(name: impl Into<String>, quota: &str) -> Result<Self, PolicyError> {
        let quota: Quota = quota.parse().map_err(PolicyError::Quota)?;
        Self::new(name, Gcra::new(quota))
    }

    /// A policy whose keys are the owners of a tree under one quota; see [`Shares::new`].
    ///
    /// # Errors
    ///
    /// If the name or the tree is not valid.
    pub fn shared(
        name: impl Into<String>,
        quota: Quota,
        reclaim: Option<Duration>,
        owners: Vec<Owner>,
    ) -> Result<Self, SharesError> {
        let name = name.into();
        let shares = Shares::new(&name, quota, reclaim, owners)?;
        let policy = Self::new(name, Algorithm::Shares(shares.shared()));
        let policy =
            policy.map_err(|error| SharesError::of_policy("name", alloc::format!("{error}")))?;
        Ok(Self { shares: Some(Arc::new(shares)), ..policy }.on_change(OnChange::Reset))
    }

    /// The policy of one part of the policy called `name`: with states of its own, in the room of
    /// all policies of that name. Parts have one name, so by that nothing is carried between them.
    pub(crate) fn part(
        name: &str,
        part: &str,
        algorithm: impl Into<Algorithm>,
    ) -> Result<Self, PolicyError> {
        let policy = Self::new(name, algorithm)?;
        // No name has this byte in it, so no policy is taken for a part of another.
        let id = fnv(part.bytes().chain([0xff]).chain(policy.id.to_le_bytes()));
        Ok(Self { id, ..policy }.on_change(OnChange::Reset))
    }

    /// The same policy with another answer to a failing store.
    #[must_use]
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        Self { on_store_error, ..self }
    }

    /// The same policy with other terms for reservations.
    #[must_use]
    pub fn reservations(self, reservations: ReservationTerms) -> Self {
        Self { reservations, ..self }
    }

    /// The same policy with each key in so many parts, at stores that split keys; others hold it
    /// whole. Its states are others than those of the policy in one part.
    #[must_use]
    pub fn in_parts(self, parts: NonZeroU16) -> Self {
        let numbers = self.id.to_le_bytes().into_iter().chain(parts.get().to_le_bytes());
        Self { parts: Some(parts), id: fnv(numbers), ..self }
    }

    /// The same policy with other numbers, where those of one name are changed while they are used.
    #[must_use]
    pub fn with_numbers(&self, algorithm: Algorithm) -> Self {
        let (numbers_mark, shares) = (mark(&algorithm), None);
        let mut policy = Self { algorithm, numbers_mark, shares, ..self.clone() };
        policy.id = identity(&policy);
        let policy = match self.parts {
            Some(parts) => policy.in_parts(parts),
            None => policy,
        };
        policy.on_change(self.on_change)
    }

    /// In how many parts a store is to keep each key, if the policy says so itself.
    pub const fn parts(&self) -> Option<NonZeroU16> {
        self.parts
    }

    /// The same policy with another rule for what becomes of used units when its numbers change.
    ///
    /// A tree of owners has one rule only: another tree begins anew ([`OnChange::Reset`]).
    #[must_use]
    pub fn on_change(self, on_change: OnChange) -> Self {
        let on_change = if self.shares.is_some() { OnChange::Reset } else { on_change };
        let family_id = if on_change == OnChange::Reset { self.id } else { self.name_id };
        Self { on_change, family_id, ..self }
    }

    /// The same policy as one of several plans, among which keys go to and fro. Of two policies of
    /// one name the newer otherwise decides for all who ask; of plans none is newer, and each key
    /// is decided by the one that it has at the moment.
    #[must_use]
    pub fn as_plan(self) -> Self {
        Self { is_plan: true, ..self }
    }

    /// Whether it is one of several plans.
    pub const fn is_plan(&self) -> bool {
        self.is_plan
    }

    /// The same policy, durable at stores that can: what was acknowledged is not lost when the
    /// process is killed or the power goes. What keys used in windows that are over is kept for
    /// `keep`.
    #[must_use]
    pub fn durable(self, keep: Duration) -> Self {
        Self { durable_for: Some(keep), ..self }
    }

    /// Whether what was acknowledged must not be lost.
    pub const fn is_durable(&self) -> bool {
        self.durable_for.is_some()
    }

    /// How long usage of windows that are over is kept, if the policy is durable.
    pub const fn durable_for(&self) -> Option<Duration> {
        self.durable_for
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The algorithm.
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The tree of owners, if its keys are such.
    pub fn shares(&self) -> Option<&Shares> {
        self.shares.as_deref()
    }

    /// What to answer when the store does not.
    pub const fn store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// The terms of reservations. A concurrency policy's lease is its reservations' time.
    pub const fn reservation_terms(&self) -> ReservationTerms {
        match &self.algorithm {
            Algorithm::Concurrency(limit) => {
                ReservationTerms { ttl: limit.lease(), on_expiry: OnExpiry::Return }
            }
            _ => self.reservations,
        }
    }

    /// A number that is the same for the same name and algorithm, on every machine and in every
    /// run, and different otherwise: the part of a state's address that belongs to the policy.
    /// Where the quota comes with the call ([`Gcra::per_call`]) it is no part of that.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// What becomes of used units when the numbers change.
    pub const fn change_rule(&self) -> OnChange {
        self.on_change
    }

    /// A number that is the same for all policies among which a key's state is carried: those of
    /// one name; with [`OnChange::Reset`], of one name and the same numbers.
    pub const fn family_id(&self) -> u64 {
        self.family_id
    }

    /// What tells the numbers of a family apart: 24 bits, all within [`Self::NUMBERS_MARK`].
    pub const fn numbers_mark(&self) -> u64 {
        self.numbers_mark
    }

    /// A number that is the same for the same name, whatever the algorithm: what tells a store
    /// whose room a state takes. A policy whose limit is changed keeps its room, and all policies
    /// that callers make up under one name have one room together.
    pub const fn name_id(&self) -> u64 {
        self.name_id
    }
}

/// FNV-1a over the name and the numbers: stable, unlike the hashers of the standard library. It
/// need not resist anybody: policies are written by the operator, not by callers.
fn identity(policy: &Policy) -> u64 {
    let numbers = match (&policy.algorithm, policy.algorithm.numbers()) {
        // The numbers are the call's, not the policy's.
        (Algorithm::Gcra(gcra), _) if gcra.is_per_call() => [7, 0, 0, 0],
        // Stored states are found by this number: it numbers the kinds as it always has.
        (_, [3, units, period, is_first]) => [4 + is_first, units, period, 0],
        (_, [4, limit, period, buckets]) => [3, limit, period, buckets],
        (_, [5, limit, lease, _]) => [6, limit, lease, 0],
        (_, [6, units, carry, grace]) => [8, units, carry, grace],
        (_, numbers) => numbers,
    };
    let zone = zone(&policy.algorithm);
    let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
    fnv(policy.name.bytes().chain(numbers).chain(zone.bytes()))
}

/// What the numbers leave out.
fn zone(algorithm: &Algorithm) -> &'static str {
    match algorithm {
        Algorithm::CalendarWindow(window) => window.calendar().zone().name(),
        _ => "",
    }
}

/// Three bits for the kind, which no other kind has, and the rest for the numbers.
fn mark(algorithm: &Algorithm) -> u64 {
    let numbers = algorithm.numbers();
    let hash = fnv(numbers.into_iter().flat_map(u64::to_le_bytes).chain(zone(algorithm).bytes()));
    // The highest bits of this hash depend on all bytes, the lowest do not.
    let hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 43;
    let kind = match algorithm {
        Algorithm::Gcra(gcra) if gcra.is_per_call() => 0,
        // Its own number has four bits.
        Algorithm::Shares(_) => 7,
        _ => numbers[0],
    };
    (kind << 21 | hash) << 20
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Why something is not a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name is empty, too long, or not printable ASCII.
    Name,
    /// The text is not a quota.
    Quota(ParseQuotaError),
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => f.write_str(
                "a policy's name is 1 to 128 printable ASCII characters without \" and \\",
            ),
            Self::Quota(error) => write!(f, "invalid quota: {error}"),
        }
    }
}

impl core::error::Error for PolicyError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Name => None,
            Self::Quota(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed_window::{Anchor, FixedWindow};

    #[test]
    fn allowing_ends_with_its_time_in_a_denial_or_in_a_share() {
        let [at_most, later] = [10, 11].map(Duration::from_secs);
        let (allow, shares) = (OnStoreError::Allow { at_most }, 4);
        assert_eq!(allow.once_gone_for(at_most), allow);
        assert_eq!(allow.once_gone_for(later), OnStoreError::Deny);
        let then_local = OnStoreError::AllowThenLocal { at_most, shares };
        assert_eq!(then_local.once_gone_for(at_most), allow);
        assert_eq!(then_local.once_gone_for(later), OnStoreError::Local { shares });
        assert_eq!(OnStoreError::Deny.once_gone_for(later), OnStoreError::Deny);
    }

    #[test]
    fn a_policy_is_the_same_if_its_name_and_numbers_are() {
        let policy = |name: &str, quota: &str| Policy::parse(name, quota).unwrap();
        let api = policy("api", "100/1m burst 20");
        assert_eq!(api.id(), policy("api", "100/60s burst 20").id());
        assert_eq!(api.id(), api.clone().on_store_error(OnStoreError::Local { shares: 2 }).id());
        assert_ne!(api.id(), policy("api", "100/1m burst 21").id());
        assert_ne!(api.id(), policy("web", "100/1m burst 20").id());
        assert_eq!(api.name_id(), policy("api", "1/1h").name_id());
        assert_ne!(api.name_id(), policy("web", "100/1m burst 20").name_id());
        let fixed = |anchor| {
            let window = FixedWindow::new("100/1m".parse().unwrap(), anchor);
            Policy::new("api", window).unwrap().id()
        };
        assert_ne!(fixed(Anchor::Epoch), fixed(Anchor::FirstRequest));
    }

    #[test]
    fn a_name_that_a_header_field_cannot_carry_is_refused() {
        for name in ["", "a\"b", "a\\b", "a\nb", "é", &"x".repeat(129)] {
            assert_eq!(Policy::parse(name, "1/s"), Err(PolicyError::Name), "{name:?}");
        }
    }
}
