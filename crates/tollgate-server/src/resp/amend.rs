//! `TOLL.REFUND` and `TOLL.RESET`: give units back, forget a key.
//!
//! ```text
//!   TOLL.REFUND policy key [COST n]   -> [limit, remaining, reset_after_ms], a map in RESP3
//!   TOLL.RESET policy key             -> OK
//! ```

use super::check::{asks, name};
use super::encode::{Encoder, Version};
use crate::rules::{Ask, Rules};
use crate::wait::millis_up;
use crate::worker::Worker;

/// Which of the commands was sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// `TOLL.REFUND`.
    Refund,
    /// `TOLL.RESET`.
    Reset,
}

impl Command {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        if name.eq_ignore_ascii_case(b"TOLL.REFUND") {
            return Some(Self::Refund);
        }
        name.eq_ignore_ascii_case(b"TOLL.RESET").then_some(Self::Reset)
    }

    /// Does it and writes the answer; the text of the error otherwise.
    pub(super) async fn apply(
        self,
        args: &[&[u8]],
        worker: &Worker,
        rules: &Rules,
        encoder: &mut Encoder<'_>,
    ) -> Result<(), String> {
        let asks = asks(&args[1..], rules, 1)?;
        let ask = &asks[0];
        match self {
            Self::Refund => refund(ask, worker, encoder).await,
            Self::Reset => {
                worker.reset(ask).await.map_err(|error| format!("ERR {error}"))?;
                encoder.simple("OK");
                Ok(())
            }
        }
    }
}

async fn refund(ask: &Ask<'_>, worker: &Worker, encoder: &mut Encoder<'_>) -> Result<(), String> {
    let snapshot = worker.refund(ask).await.map_err(|error| format!("ERR {error}"))?;
    if encoder.version() == Version::Three {
        encoder.map(3);
    } else {
        encoder.array(3);
    }
    name(encoder, "limit");
    encoder.unsigned(snapshot.limit());
    name(encoder, "remaining");
    encoder.unsigned(snapshot.remaining());
    name(encoder, "reset_after_ms");
    encoder.unsigned(millis_up(snapshot.reset_after()));
    Ok(())
}
