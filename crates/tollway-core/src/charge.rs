//! What is asked: a policy, a key and a cost.

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;

use crate::Policy;

/// Units asked for; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// One unit.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// `units`, unless zero.
    pub const fn new(units: u64) -> Option<Self> {
        match NonZeroU64::new(units) {
            Some(units) => Some(Self(units)),
            None => None,
        }
    }

    /// The units.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Both together, at most [`u64::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.get()))
    }
}

/// Who is limited: opaque bytes, at least one and at most [`Key::LEN_MAX`] of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a>(&'a [u8]);

impl<'a> Key<'a> {
    /// The longest key, in bytes.
    pub const LEN_MAX: usize = 65_536;

    /// The key made of `bytes`.
    ///
    /// # Errors
    ///
    /// If there are none, or more than [`Key::LEN_MAX`].
    pub fn new<B: AsRef<[u8]> + ?Sized>(bytes: &'a B) -> Result<Self, KeyError> {
        match bytes.as_ref() {
            [] => Err(KeyError::Empty),
            bytes if bytes.len() > Self::LEN_MAX => Err(KeyError::TooLong),
            bytes => Ok(Self(bytes)),
        }
    }

    /// The bytes.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are chosen by strangers: shown escaped, so that a log line stays one line.
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

crate::plain_error! {
    /// Why bytes do not make a key.
    #[non_exhaustive]
    pub enum KeyError {
        /// No bytes.
        Empty = "the key is empty",
        /// More than [`Key::LEN_MAX`] bytes.
        TooLong = "the key is longer than 65536 bytes",
    }
}

/// A policy, a key and a cost asked together. A request is one or more charges, all or nothing.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The policy to ask.
    pub policy: &'a Policy,
    /// Who asks.
    pub key: Key<'a>,
    /// How much.
    pub cost: Cost,
    /// Whether the policy may say no.
    pub mode: Mode,
}

/// Whether a charge may be denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The units are taken if the policy allows it.
    #[default]
    Enforce,
    /// The units are taken whether or not the policy would allow it: a key with a limit of its own
    /// that still counts toward the global one.
    Count,
}

impl<'a> Charge<'a> {
    /// The same charges, each under another policy where there is one.
    #[must_use]
    pub fn each_under(charges: &[Self], others: &'a [Option<Policy>]) -> Vec<Self> {
        let under = |(charge, other): (&Self, &'a Option<Policy>)| Self {
            policy: other.as_ref().unwrap_or(charge.policy),
            ..*charge
        };
        charges.iter().zip(others).map(under).collect()
    }

    /// One unit of `policy` for `key`.
    pub const fn new(policy: &'a Policy, key: Key<'a>) -> Self {
        Self { policy, key, cost: Cost::ONE, mode: Mode::Enforce }
    }

    /// The same charge at another cost.
    #[must_use]
    pub const fn cost(self, cost: Cost) -> Self {
        Self { cost, ..self }
    }

    /// The same charge, counted but never denied.
    #[must_use]
    pub const fn counted(self) -> Self {
        Self { mode: Mode::Count, ..self }
    }
}
