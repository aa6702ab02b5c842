//! How long a result may be, checked before it is sent.
//!
//! A script that settles takes what several calls have gathered, and a result that is too long must
//! fail its own call alone. What the queue allows is read once, and again when a result is longer: a
//! bound that was lowered meanwhile counts for the next process.

use std::sync::atomic::Ordering;

use redis::Value;

use super::pack::unpack_settings;
use super::read::bytes;
use super::{Inner, QueueContext};
use crate::error::Error;

impl QueueContext {
    /// Whether the queue is known to take results of `length`.
    pub(super) fn takes_result(&self, length: usize) -> bool {
        length <= self.result_max.load(Ordering::Relaxed) as usize
    }

    /// Whether the queue takes results of `length`.
    pub(super) async fn check_result(&self, inner: &Inner, length: usize) -> Result<(), Error> {
        if self.takes_result(length) {
            return Ok(());
        }
        let mut command = redis::cmd("HGET");
        command.arg([&self.base[..], b"c"].concat()).arg("s");
        let value = inner.client.ask(&command).await?;
        // That there is no such queue is told by the script.
        if value == Value::Nil {
            return Ok(());
        }
        let settings = unpack_settings(bytes(&value)?)?;
        self.result_max.store(settings.payload_max, Ordering::Relaxed);
        settings.check_result(length)
    }
}
