//! `TOLL.TAKE`, `TOLL.REFUND` and `TOLL.RESET`: take what there is, give units back, forget a key.
//!
//! ```text
//!   TOLL.TAKE policy key [COST n] [COUNT] [NANOS]   -> [granted, a charge as TOLL.CHECK's]
//!   TOLL.REFUND policy key [COST n] [NANOS]         -> [limit, remaining, reset_after_ms]
//!   TOLL.RESET policy key                           -> OK
//! ```
//!
//! A take grants as many of `n` units as there are, none if there are none; the
//! charge beside it is the decision on what was granted, or on one unit if nothing was.

use super::check::{Asked, asks, encode_charge, encode_times, failure};
use super::encode::Encoder;
use crate::auth::Role;
use crate::decide::Decider;

/// Which of the commands was sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// `TOLL.TAKE`.
    Take,
    /// `TOLL.REFUND`.
    Refund,
    /// `TOLL.RESET`.
    Reset,
}

impl Command {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        let is = |command: &[u8]| name.eq_ignore_ascii_case(command);
        match () {
            () if is(b"TOLL.TAKE") => Some(Self::Take),
            () if is(b"TOLL.REFUND") => Some(Self::Refund),
            () if is(b"TOLL.RESET") => Some(Self::Reset),
            () => None,
        }
    }

    /// The role it needs.
    pub(super) const fn role(self) -> Role {
        match self {
            Self::Take | Self::Refund => Role::Check,
            Self::Reset => Role::Admin,
        }
    }

    /// Does it and writes the answer; the text of the error otherwise.
    pub(super) async fn apply(
        self,
        args: &[&[u8]],
        decider: &Decider<'_>,
        encoder: &mut Encoder<'_>,
    ) -> Result<(), String> {
        let asked = asks(&args[1..], decider.rules(), 1)?;
        match self {
            Self::Take => take(&asked, decider, encoder).await,
            Self::Refund => refund(&asked, decider, encoder).await,
            Self::Reset => {
                decider.reset(&asked.asks[0]).await.map_err(|error| failure(&error))?;
                encoder.simple("OK");
                Ok(())
            }
        }
    }
}

async fn take(
    asked: &Asked<'_>,
    decider: &Decider<'_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), String> {
    let ask = &asked.asks[0];
    let grant = decider.take(ask).await.map_err(|error| failure(&error))?;
    encoder.array(2);
    encoder.unsigned(grant.granted);
    encode_charge(ask, &grant.decision, asked.unit, encoder);
    Ok(())
}

async fn refund(
    asked: &Asked<'_>,
    decider: &Decider<'_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), String> {
    let snapshot = decider.refund(&asked.asks[0]).await.map_err(|error| failure(&error))?;
    encoder.array(3 + usize::from(asked.unit == crate::wait::Unit::Nanos));
    encoder.unsigned(snapshot.limit());
    encoder.unsigned(snapshot.remaining());
    encode_times(snapshot, asked.unit, encoder);
    Ok(())
}
