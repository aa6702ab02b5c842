//! Runs of scripts that several calls of the backend need.

use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use tollway_core::Timestamp;

use super::Inner;
use super::pack::{self, moment, unpack_settings};
use super::read::{self, bytes, damaged, list, moment_of, number, text, unsigned};
use super::script::{CONTROL, LEASE, PUT};
use crate::error::{Error, ErrorKind};
use crate::{Leased, PAGE_BYTES, QueueName, QueueSettings};

impl Inner {
    pub(super) async fn control(
        self: &Arc<Self>,
        queue: &QueueName,
        now: Timestamp,
        arguments: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<i64, Error> {
        let context = self.context(queue)?;
        number(&self.change(&CONTROL, &context.base, now, arguments).await?)
    }

    /// Makes a queue or changes its settings.
    pub(super) async fn put(
        self: &Arc<Self>,
        queue: &QueueName,
        settings: QueueSettings,
        now: Timestamp,
    ) -> Result<(), Error> {
        settings.validate()?;
        let context = self.context(queue)?;
        let shared = settings.shared.iter().map(|name| name.as_str().as_bytes().to_vec());
        // What time has done, it did under the settings of before.
        let change = std::iter::once(b"reshare".to_vec()).chain(shared.clone());
        match self.look(&CONTROL, &context.base, now, change).await {
            Err(error) if error.kind() != ErrorKind::UnknownQueue => return Err(error),
            _ => {}
        }
        let packed = pack::settings(&settings);
        let has_limits = if settings.queue_limits.is_empty() { b"0" } else { b"1" };
        let name = queue.as_str().as_bytes().to_vec();
        let mut arguments =
            vec![b"put".to_vec(), name, packed.clone(), packed, has_limits.to_vec()];
        arguments.extend(shared);
        self.look(&PUT, &context.base, now, arguments).await?;
        self.replace(&context.base, now).await
    }

    /// Forgets a queue, a chunk of its keys at a time; whether there was one.
    pub(super) async fn remove(
        self: &Arc<Self>,
        queue: &QueueName,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let context = self.context(queue)?;
        let mut was_there = false;
        // What its jobs hold of limits that it shares would be held for ever.
        loop {
            match self.look(&CONTROL, &context.base, now, [b"release".to_vec()]).await {
                Ok(more) if number(&more)? == 1 => {}
                Err(error) if error.kind() != ErrorKind::UnknownQueue => return Err(error),
                _ => break,
            }
        }
        loop {
            let arguments = [b"remove".to_vec(), queue.as_str().as_bytes().to_vec()];
            let answer = list(self.look(&PUT, &context.base, now, arguments).await?)?;
            let [was, more] = &answer[..] else { return Err(damaged()) };
            was_there |= number(was)? == 1;
            if number(more)? == 0 {
                return Ok(was_there);
            }
        }
    }

    /// Every queue and its settings, in order of names.
    pub(super) async fn list_queues(&self) -> Result<Vec<(QueueName, QueueSettings)>, Error> {
        let mut command = redis::cmd("HGETALL");
        command.arg(format!("{}c", self.base));
        let pairs = match self.client.ask(&command).await? {
            Value::Map(pairs) => pairs.into_iter().flat_map(|(k, v)| [k, v]).collect(),
            value => list(value)?,
        };
        let read = |pair: &[Value]| {
            Ok((QueueName::new(text(&pair[0])?)?, unpack_settings(bytes(&pair[1])?)?))
        };
        let mut queues = pairs.chunks_exact(2).map(read).collect::<Result<Vec<_>, Error>>()?;
        queues.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(queues)
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
        let context = self.context(queue)?;
        let seen = context.watch.seen();
        let asked = Instant::now();
        let page = PAGE_BYTES.to_string().into_bytes();
        let arguments = [max.to_string().into_bytes(), worker.as_bytes().to_vec(), page];
        let mut answer = list(self.change(&LEASE, &context.base, now, arguments).await?)?;
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
        let answer = list(self.client.ask(&redis::cmd("TIME")).await?)?;
        let [seconds, micros] = &answer[..] else { return Err(damaged()) };
        Ok(moment(unsigned(seconds)? * 1_000_000 + unsigned(micros)?))
    }
}
