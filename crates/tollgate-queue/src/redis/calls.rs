//! Runs of scripts that several calls of the backend need.

use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use tollgate_core::Timestamp;

use super::Inner;
use super::pack::moment;
use super::read::{self, bytes, damaged, list, moment_of, number, unsigned};
use super::script::{CONTROL, LEASE};
use crate::error::Error;
use crate::{Leased, QueueName};

impl Inner {
    pub(super) async fn control(
        self: &Arc<Self>,
        queue: &QueueName,
        now: Timestamp,
        arguments: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<i64, Error> {
        let desk = self.desk(queue)?;
        number(&self.change(&CONTROL, &desk.base, now, arguments).await?)
    }

    /// Places every group anew, a chunk at a time: their limits have changed.
    pub(super) async fn replace(&self, base: &[u8], now: Timestamp) -> Result<(), Error> {
        let mut cursor = b"0".to_vec();
        loop {
            let arguments = [b"replace".to_vec(), cursor];
            let answer = self.look(&CONTROL, base, now, arguments).await?;
            cursor = bytes(&answer)?.to_vec();
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// Leases, and what recurring jobs are due, and the server's time.
    pub(super) async fn lease(
        self: &Arc<Self>,
        queue: &QueueName,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Result<(Leased, Vec<Value>, Timestamp), Error> {
        let desk = self.desk(queue)?;
        let seen = desk.watch.seen();
        let asked = Instant::now();
        let arguments = [max.to_string().into_bytes(), worker.as_bytes().to_vec()];
        let mut answer = list(self.change(&LEASE, &desk.base, now, arguments).await?)?;
        if answer.len() < 4 {
            return Err(damaged());
        }
        let jobs = answer.split_off(4);
        let server = moment(unsigned(&answer[0])?);
        self.compare_clocks(now, asked, server);
        let next = moment_of(&answer[1])?.map(|next| self.by_caller(next));
        let expires_at = self.by_caller(moment(unsigned(&answer[3])?));
        let read = |pair: &[Value]| {
            let stored = read::Stored::read(bytes(&pair[1])?)?;
            Ok(stored.lease(unsigned(&pair[0])?, expires_at))
        };
        let leases = jobs.chunks_exact(2).map(read).collect::<Result<Vec<_>, Error>>()?;
        Ok((Leased { leases, next, seen }, list(answer[2].clone())?, server))
    }

    pub(super) async fn server_time(&self) -> Result<Timestamp, Error> {
        let answer = list(self.line.ask(&redis::cmd("TIME")).await?)?;
        let [seconds, micros] = &answer[..] else { return Err(damaged()) };
        Ok(moment(unsigned(seconds)? * 1_000_000 + unsigned(micros)?))
    }
}
