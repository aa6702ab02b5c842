//! `TOLL.RESERVE`, `TOLL.COMMIT` and `TOLL.CANCEL`: take now, settle later.
//!
//! ```text
//!   TOLL.RESERVE policy key [COST n] ... [NANOS]
//!                                          -> TOLL.CHECK's four fields,
//!                                             reservation or nil, expires_after_ms
//!   TOLL.COMMIT reservation [cost ...]     -> 1 settled, 0 unknown: settled before, or expired
//!   TOLL.CANCEL reservation                -> 1 settled, 0 unknown
//! ```

use tollway_core::{ReservationId, Settlement, StoreError};

use super::check::{Asked, asks, encode_summary, failure};
use super::encode::Encoder;
use super::parse::unsigned;
use crate::decide::Decider;
use crate::reservation_name;
use crate::rules::Rules;

/// Which of the commands was sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// `TOLL.RESERVE`.
    Reserve,
    /// `TOLL.COMMIT`.
    Commit,
    /// `TOLL.CANCEL`.
    Cancel,
}

impl Command {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        let is = |command: &[u8]| name.eq_ignore_ascii_case(command);
        match () {
            () if is(b"TOLL.RESERVE") => Some(Self::Reserve),
            () if is(b"TOLL.COMMIT") => Some(Self::Commit),
            () if is(b"TOLL.CANCEL") => Some(Self::Cancel),
            () => None,
        }
    }

    /// Why the arguments do not read, if they do not.
    pub(super) fn wrong(self, args: &[&[u8]], rules: &Rules, charges_max: usize) -> Option<String> {
        match self {
            Self::Reserve => asks(&args[1..], rules, charges_max).err(),
            Self::Commit | Self::Cancel => settlement(args).err(),
        }
    }

    /// Does it and writes the answer; the text of the error otherwise.
    pub(super) async fn apply(
        self,
        args: &[&[u8]],
        decider: &Decider<'_>,
        encoder: &mut Encoder<'_>,
    ) -> Result<(), String> {
        match self {
            Self::Reserve => reserve(&args[1..], decider, encoder).await,
            Self::Commit => {
                let (id, costs) = settlement(args)?;
                settled(decider.commit(id, &costs).await, encoder)
            }
            Self::Cancel => {
                let (id, costs) = settlement(args)?;
                if !costs.is_empty() {
                    return Err("ERR wrong number of arguments; reservation expected".to_owned());
                }
                settled(decider.cancel(id).await, encoder)
            }
        }
    }
}

async fn reserve(
    args: &[&[u8]],
    decider: &Decider<'_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), String> {
    let charges_max = decider.settings.limits.charges_max;
    let Asked { asks, unit } = asks(args, decider.rules(), charges_max)?;
    let reserved = decider.reserve(&asks).await.map_err(|error| failure(&error))?;
    encoder.array(6);
    encode_summary(&reserved.verdict, &asks, unit, encoder);
    match reserved.reservation {
        Some(reservation) => encoder.bulk(reservation_name::text(reservation.id).as_bytes()),
        None => encoder.null(),
    }
    match reserved.reservation {
        Some(reservation) => encoder.unsigned(unit.of(reservation.expires_after)),
        None => encoder.null(),
    }
    Ok(())
}

fn settlement(args: &[&[u8]]) -> Result<(ReservationId, Vec<u64>), String> {
    let [_, id, costs @ ..] = args else {
        return Err("ERR wrong number of arguments; reservation expected".to_owned());
    };
    let id = std::str::from_utf8(id).ok().and_then(reservation_name::parse);
    let id = id.ok_or("ERR a reservation is named by 32 hexadecimal digits")?;
    let costs: Option<Vec<u64>> = costs.iter().map(|text| unsigned(text)).collect();
    Ok((id, costs.ok_or("ERR costs are whole numbers from 0")?))
}

fn settled(
    settlement: Result<Settlement, StoreError>,
    encoder: &mut Encoder<'_>,
) -> Result<(), String> {
    let settlement = settlement.map_err(|error| failure(&error))?;
    encoder.integer(i64::from(settlement == Settlement::Settled));
    Ok(())
}
