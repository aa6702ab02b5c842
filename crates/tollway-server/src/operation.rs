//! The operations that clients ask by name: one table for RESP and HTTP.
//!
//! ```text
//!   TOLL.TAKE ...   --+                                                 +--> RESP array
//!                     +--> Verb --> Operation --perform--> Outcome -----+
//!   POST /v1/take   --+                                                 +--> JSON
//! ```
//!
//! A front reads the arguments and writes the outcome in its own form. Names, roles, bounds and the
//! call of the decider are here alone, so a verb means the same on both fronts.

use std::rc::Rc;

use tollway_core::{
    Cost, Grant, Key, Mode, ReservationId, Reserved, Settlement, Snapshot, StoreError, Verdict,
};

use crate::adhoc::CallLimit;
use crate::auth::Role;
use crate::decide::Decider;
use crate::logs::escaped;
use crate::metrics::Tally;
use crate::rules::{Ask, Rules, Unaskable};
use crate::settings::Limits;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Takes every charge if all are allowed.
    Check,
    /// Says what a check would answer, and takes nothing.
    Peek,
    /// Takes every charge if all are allowed, to be settled later.
    Reserve,
    /// Settles a reservation at its real costs.
    Commit,
    /// Settles a reservation by giving everything back.
    Cancel,
    /// Takes as many units as there are, up to the cost.
    Take,
    /// Gives the units back.
    Refund,
    /// Forgets the key under the policy.
    Reset,
}

impl Verb {
    /// Every verb in the order of its number, with its name (what follows `TOLL.` and `/v1/`) and
    /// the role that it needs. Names are compared one by one, so the most frequent comes first.
    pub(crate) const TABLE: [(Self, &'static str, Role); 8] = [
        (Self::Check, "check", Role::Check),
        (Self::Peek, "peek", Role::Read),
        (Self::Reserve, "reserve", Role::Check),
        (Self::Commit, "commit", Role::Check),
        (Self::Cancel, "cancel", Role::Check),
        (Self::Take, "take", Role::Check),
        (Self::Refund, "refund", Role::Check),
        (Self::Reset, "reset", Role::Admin),
    ];

    /// The verb of this name, in upper or lower case.
    #[inline]
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        let is_it = |row: &&(Self, &str, Role)| name.eq_ignore_ascii_case(row.1.as_bytes());
        Self::TABLE.iter().find(is_it).map(|row| row.0)
    }

    /// The role that it needs.
    pub(crate) const fn role(self) -> Role {
        Self::TABLE[self as usize].2
    }

    /// How many charges a request may name; `None` if it names a reservation instead.
    pub(crate) const fn charges_max(self, limits: &Limits) -> Option<usize> {
        match self {
            Self::Check | Self::Peek | Self::Reserve => Some(limits.charges_max),
            Self::Take | Self::Refund | Self::Reset => Some(1),
            Self::Commit | Self::Cancel => None,
        }
    }
}

/// One charge as a client sends it.
#[derive(Debug)]
pub(crate) struct ChargeAsked<'a> {
    /// What is charged.
    pub limit: LimitAsked<'a>,
    /// Who is charged.
    pub key: &'a [u8],
    /// Units.
    pub cost: Cost,
    /// Whether they may be denied.
    pub mode: Mode,
}

/// A limit as a client says it.
#[derive(Debug)]
pub(crate) enum LimitAsked<'a> {
    /// By the name of a policy.
    Named(&'a [u8]),
    /// As it is, with the call.
    Given(Rc<CallLimit>),
}

impl ChargeAsked<'_> {
    /// What to ask; decisions on limits that came with the call are counted in `tally`.
    ///
    /// # Errors
    ///
    /// If there is no such policy, or the bytes are no key.
    pub(crate) fn ask<'a>(
        &'a self,
        rules: &'a Rules,
        tally: &'a Tally,
    ) -> Result<Ask<'a>, Unaskable> {
        let mut ask = match &self.limit {
            LimitAsked::Named(name) => rules.ask_named(name, self.key, self.cost)?,
            LimitAsked::Given(limit) => {
                let key = Key::new(self.key).map_err(Unaskable::Key)?;
                rules.ask(limit.source(tally), key, self.cost)
            }
        };
        ask.charge.mode = self.mode;
        Ok(ask)
    }
}

/// A verb with what it is about.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    verb: Verb,
    /// The charges, at least one; none if a reservation is settled.
    pub asks: Vec<Ask<'a>>,
    reservation: ReservationId,
    costs: Vec<u64>,
}

/// What an operation came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Of a check or a peek.
    Verdict(Verdict),
    /// Of a take.
    Granted(Grant),
    /// Of a refund: what is left.
    Left(Snapshot),
    /// The key is forgotten.
    Reset,
    /// Of a reserve.
    Reserved(Reserved),
    /// Whether the reservation was known: false if it was settled before, or has expired.
    Settled(bool),
}

impl<'a> Operation<'a> {
    /// An operation on charges, of which there is at least one. A limit of two buckets is charged
    /// to both.
    ///
    /// # Errors
    ///
    /// If a part is to be taken of a limit of two buckets.
    pub(crate) fn on_charges(verb: Verb, asks: Vec<Ask<'a>>) -> Result<Self, &'static str> {
        let asks = with_spacings(asks);
        if verb == Verb::Take && asks.len() > 1 {
            return Err("take needs a limit of one bucket, and a min_interval is a second one");
        }
        Ok(Self { verb, asks, reservation: ReservationId(0), costs: Vec::new() })
    }

    /// The settlement of the reservation with this name; the text of the error if it cannot be.
    pub(crate) fn settle(verb: Verb, name: &str, costs: Vec<u64>) -> Result<Self, &'static str> {
        let reservation =
            reservation_named(name).ok_or("reservation must be 32 hexadecimal digits")?;
        if verb == Verb::Cancel && !costs.is_empty() {
            return Err("costs belong to a commit: a cancelled reservation costs nothing");
        }
        Ok(Self { verb, asks: Vec::new(), reservation, costs })
    }

    /// Does it.
    ///
    /// # Errors
    ///
    /// If the store fails and no policy answers in its place.
    pub(crate) async fn perform(&self, decider: &Decider<'_>) -> Result<Outcome, StoreError> {
        let asks = &self.asks[..];
        Ok(match self.verb {
            Verb::Check => Outcome::Verdict(decider.check(asks).await?),
            Verb::Peek => Outcome::Verdict(decider.peek(asks).await?),
            Verb::Take => Outcome::Granted(decider.take(&asks[0]).await?),
            Verb::Refund => {
                let left = decider.refund(&asks[0]).await?;
                for ask in &asks[1..] {
                    decider.refund(ask).await?;
                }
                Outcome::Left(left)
            }
            Verb::Reset => {
                for ask in asks {
                    decider.reset(ask).await?;
                }
                Outcome::Reset
            }
            Verb::Reserve => Outcome::Reserved(decider.reserve(asks).await?),
            Verb::Commit => {
                let settlement = decider.commit(self.reservation, &self.costs).await?;
                Outcome::Settled(settlement == Settlement::Settled)
            }
            Verb::Cancel => {
                let settlement = decider.cancel(self.reservation).await?;
                Outcome::Settled(settlement == Settlement::Settled)
            }
        })
    }

    /// Logs what was done if it is an operator's business, which only a reset is: by key, and by
    /// the name of whose token it was.
    pub(crate) fn log(&self, who: impl FnOnce() -> String) {
        let (Verb::Reset, Some(Ask { charge, .. })) = (self.verb, self.asks.first()) else {
            return;
        };
        let (who, key) = (who(), escaped(charge.key.as_bytes()));
        tracing::info!(who, key, policy = charge.policy.name(), "an operator reset a key");
    }
}

/// Each charge, followed by the one to the second bucket of its limit if that has one.
pub(crate) fn with_spacings(asks: Vec<Ask<'_>>) -> Vec<Ask<'_>> {
    match asks.iter().all(|ask| ask.spacing.is_none()) {
        true => asks,
        false => asks.into_iter().flat_map(Ask::with_spacing).collect(),
    }
}

/// The name of a reservation: 32 hexadecimal digits.
pub(crate) fn reservation_name(id: ReservationId) -> String {
    format!("{:032x}", id.0)
}

fn reservation_named(text: &str) -> Option<ReservationId> {
    // `from_str_radix` alone would take a sign and fewer digits.
    let is_name = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| u128::from_str_radix(text, 16).ok().map(ReservationId)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservations_name_is_read_as_it_was_written_and_nothing_else_is_one() {
        for id in [0, 1, u128::MAX].map(ReservationId) {
            assert_eq!(reservation_named(&reservation_name(id)), Some(id));
        }
        for wrong in ["", "1", &"g".repeat(32), &"1".repeat(33), "+0000000000000000000000000000001"]
        {
            assert_eq!(reservation_named(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_table_is_in_the_order_of_the_verbs() {
        for (index, (verb, name, _)) in Verb::TABLE.into_iter().enumerate() {
            assert_eq!((verb as usize, Verb::named(name.as_bytes())), (index, Some(verb)));
        }
        assert_eq!((Verb::named(b"TAKE"), Verb::named(b"taken")), (Some(Verb::Take), None));
    }

    #[test]
    fn a_cancelled_reservation_has_no_costs() {
        let name = reservation_name(ReservationId(7));
        assert!(Operation::settle(Verb::Commit, &name, vec![1]).is_ok());
        assert!(Operation::settle(Verb::Cancel, &name, Vec::new()).is_ok());
        assert!(Operation::settle(Verb::Cancel, &name, vec![1]).is_err());
    }
}
