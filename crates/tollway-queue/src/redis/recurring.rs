//! Recurring jobs: the store knows when, this process works out when next.
//!
//! A job that is due is enqueued under an idempotency key made of its name and time, and only then
//! moved on: whoever dies in between leaves a second try that finds the first.

use std::sync::Arc;

use redis::Value;
use tollway_core::Timestamp;

use super::decode::{bytes, damaged, list, text};
use super::encode::{self, job, micros, micros_at, unpack_job};
use super::script::CONTROL;
use super::{Inner, QueueContext, batch_runs};
use crate::error::Error;
use crate::{NewJob, Recurring, Rhythm};

/// The bytes of a recurring job: `c` and the calendar, or `e` and microseconds, a newline, the job.
pub(super) fn pack(recurring: &Recurring) -> Vec<u8> {
    let rhythm = match &recurring.rhythm {
        Rhythm::Cron(cron) => format!("c{cron}\n"),
        Rhythm::Every(interval) => format!("e{}\n", micros(*interval)),
    };
    let plain = NewJob { key: None, start: crate::Start::Now, ..recurring.job.clone() };
    [rhythm.into_bytes(), job(&plain)].concat()
}

pub(super) fn unpack(name: &str, packed: &[u8]) -> Result<Recurring, Error> {
    let end = packed.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
    let line = std::str::from_utf8(&packed[..end]).map_err(|_| damaged())?;
    let rhythm = match line.split_at_checked(1) {
        Some(("c", cron)) => Rhythm::Cron(cron.parse()?),
        Some(("e", micros)) => {
            let micros = micros.parse::<f64>().map_err(|_| damaged())?;
            Rhythm::Every(std::time::Duration::from_micros(micros as u64))
        }
        _ => return Err(damaged()),
    };
    let job = unpack_job(&packed[end + 1..]).ok_or_else(damaged)?;
    Ok(Recurring { name: name.to_owned(), rhythm, job })
}

impl Inner {
    /// Enqueues recurring jobs that are due at `server`, each once.
    pub(super) async fn fire(
        self: &Arc<Self>,
        context: &Arc<QueueContext>,
        names: Vec<Value>,
        server: Timestamp,
        now: Timestamp,
    ) -> Result<(), Error> {
        for name in names {
            let name = bytes(&name)?.to_vec();
            let key = |suffix: &[u8]| [&context.base[..], suffix].concat();
            let mut command = redis::cmd("HGET");
            command.arg(key(b"t")).arg(&name);
            let packed = self.client.ask(&command).await?;
            let mut command = redis::cmd("ZSCORE");
            command.arg(key(b"tz")).arg(&name);
            let due = self.client.ask(&command).await?;
            if packed == Value::Nil || due == Value::Nil {
                continue;
            }
            let due = match &due {
                Value::Double(due) => due.to_string(),
                due => text(due)?.to_owned(),
            };
            let recurring = unpack(&String::from_utf8_lossy(&name), bytes(&packed)?)?;
            let once = format!("\u{1}recurring {} {due}", recurring.name);
            let call = encode::call(&[NewJob { key: Some(once), ..recurring.job.clone() }]);
            // A full queue has work enough: this time passes, the next comes.
            drop(batch_runs::enqueue(self, context, vec![call], now).await?);
            let following = recurring.rhythm.next_after(server).map(micros_at);
            let following = following.map_or(String::new(), |at| at.to_string());
            let arguments = [b"fire".to_vec(), name, due.into_bytes(), following.into_bytes()];
            self.change(&CONTROL, (&context.base[..], now), arguments).await?;
        }
        Ok(())
    }
}

/// Every recurring job of an answer.
pub(super) fn read_all(value: Value) -> Result<Vec<Recurring>, Error> {
    let parts = list(value)?;
    let read = |pair: &[Value]| unpack(text(&pair[0])?, bytes(&pair[1])?);
    let mut all = parts.chunks_exact(2).map(read).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}
