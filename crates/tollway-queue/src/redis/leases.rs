//! What workers ask of Redis: leases, to keep them, and what came of them.

use std::time::Instant;

use redis::Value;
use tollway_core::Timestamp;

use super::batch_runs;
use super::decode::{beats, bytes, damaged, list, moment_of, stored, unsigned};
use super::encode::{self, moment};
use super::operations::{QueueCall, decimal, pack_outcomes, word};
use super::script::{HEARTBEAT, LEASE};
use crate::error::Error;
use crate::settings::longest_result;
use crate::{Beat, Lease, LeaseToken, Leased, Outcome, PAGE_BYTES, Progress, Reply};

impl QueueCall<'_> {
    /// Leases, after recurring jobs that are due were enqueued if there is nothing else.
    pub(super) async fn lease_and_recur(&self, max: usize, worker: &str) -> Result<Leased, Error> {
        // A bound, since others may enqueue and lease the same ones meanwhile.
        for _ in 0..16 {
            let (leased, due, server) = self.lease(max, worker).await?;
            if due.is_empty() || !leased.leases.is_empty() {
                return Ok(leased);
            }
            self.inner.fire(self.context, due, server, self.now).await?;
        }
        self.lease(max, worker).await.map(|(leased, ..)| leased)
    }

    /// Leases, and what recurring jobs are due, and the server's time.
    async fn lease(
        &self,
        max: usize,
        worker: &str,
    ) -> Result<(Leased, Vec<Value>, Timestamp), Error> {
        // Read before the server is asked: what it marks meanwhile must count as new.
        let inner = self.inner;
        let seen = self.context.watch.seen();
        let asked = Instant::now();
        let arguments = [decimal(max), word(worker), decimal(PAGE_BYTES)];
        let mut answer = list(inner.change(&LEASE, self.base(), arguments).await?)?;
        if answer.len() < 4 {
            return Err(damaged());
        }
        let jobs = answer.split_off(4);
        let server = moment(unsigned(&answer[0])?);
        inner.compare_clocks(self.now, asked, server);
        let next = moment_of(&answer[1])?.map(|next| inner.by_caller(next));
        let leased_at = inner.by_caller(server);
        let expires_at = inner.by_caller(moment(unsigned(&answer[3])?));
        let read = |pair: &[Value]| {
            let (lease, _) = stored(unsigned(&pair[0])?, bytes(&pair[1])?)?;
            // What is stored counts the attempts before this one.
            Ok(Lease { attempt: lease.attempt + 1, leased_at, expires_at, ..lease })
        };
        let leases = jobs.chunks_exact(2).map(read).collect::<Result<Vec<_>, Error>>()?;
        Ok((Leased { leases, next, seen }, list(answer.swap_remove(2))?, server))
    }

    pub(super) async fn heartbeat(&self, tokens: Vec<LeaseToken>) -> Result<Vec<Beat>, Error> {
        let tokens = tokens.into_iter().map(encode::token);
        let arguments = std::iter::once(word("beat")).chain(tokens);
        let mut told = beats(self.inner.query(&HEARTBEAT, self.base(), arguments).await?)?;
        for beat in &mut told {
            if let Beat::Until(until) | Beat::Cancelled(until) = beat {
                *until = self.inner.by_caller(*until);
            }
        }
        Ok(told)
    }

    pub(super) async fn progress(
        &self,
        token: LeaseToken,
        progress: Progress,
    ) -> Result<bool, Error> {
        let arguments = [word("progress"), encode::progress(token, progress)];
        let told = beats(self.inner.query(&HEARTBEAT, self.base(), arguments).await?)?;
        Ok(told.first().is_some_and(|beat| *beat != Beat::Lost))
    }

    /// Settles together with others, unless each call has a time of its own.
    pub(super) async fn settle(&self, outcomes: &[(LeaseToken, Outcome)]) -> Result<Reply, Error> {
        let (inner, context) = (self.inner, self.context);
        context.check_bytes(inner, "result", longest_result(outcomes)).await?;
        let packed = pack_outcomes(outcomes);
        if !inner.settings.use_callers_time {
            return context.settle.ask(packed).await;
        }
        let replies = batch_runs::settle(inner, context, vec![packed], self.now).await?;
        replies.into_iter().next().ok_or_else(damaged)?
    }
}
