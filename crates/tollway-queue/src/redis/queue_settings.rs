//! The settings of a queue, as this process has last read them.
//!
//! Estimates need those by which the server decided: it tells their version. How long a payload or
//! a result may be is read once, and again when one is longer: a bound that was lowered meanwhile
//! counts for the next process.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use redis::Value;

use super::decode::{bytes, damaged};
use super::encode::unpack_settings;
use super::estimate::{EstimateContext, Frame};
use super::{Inner, QueueContext};
use crate::QueueSettings;
use crate::error::Error;

impl QueueContext {
    /// What an estimate needs beside a group.
    pub(super) async fn setting(
        &self,
        inner: &Inner,
        frame: Frame,
    ) -> Result<EstimateContext, Error> {
        let lock = || self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().clone().filter(|(version, _)| *version == frame.version);
        let settings = match known {
            Some((_, settings)) => settings,
            None => {
                let settings = Arc::new(self.fetch(inner).await?.ok_or_else(damaged)?);
                *lock() = Some((frame.version, Arc::clone(&settings)));
                settings
            }
        };
        EstimateContext::new(frame, settings)
    }

    /// Whether the queue is known to take results of `length`.
    pub(super) fn takes_result(&self, length: usize) -> bool {
        length <= self.result_max.load(Ordering::Relaxed) as usize
    }

    /// Whether the queue takes a payload or result of `length`.
    ///
    /// Checked before it is sent: a script takes what several calls have gathered, and what is too
    /// long must fail its own call alone.
    pub(super) async fn check_bytes(
        &self,
        inner: &Inner,
        field: &str,
        length: usize,
    ) -> Result<(), Error> {
        if self.takes_result(length) {
            return Ok(());
        }
        // That there is no such queue is told by the script.
        let Some(settings) = self.fetch(inner).await? else { return Ok(()) };
        self.result_max.store(settings.payload_max, Ordering::Relaxed);
        settings.check_bytes(field, length)
    }

    async fn fetch(&self, inner: &Inner) -> Result<Option<QueueSettings>, Error> {
        let mut command = redis::cmd("HGET");
        command.arg([&self.base[..], b"c"].concat()).arg("s");
        match inner.client.ask(&command).await? {
            Value::Nil => Ok(None),
            value => unpack_settings(bytes(&value)?).map(Some),
        }
    }
}
