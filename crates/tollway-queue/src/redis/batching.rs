//! Calls that find the server busy go together in the next run of a script.
//!
//! ```text
//!   callers ──> queue ──> [ everything that waits ] ──> one run ──> answers, one per call
//! ```
//!
//! A call that finds nothing under way is sent as soon as tasks that are ready have run, and alone if
//! they ask nothing: batches grow only out of time that would be spent waiting anyway.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::Call;
use crate::error::{Error, ErrorKind};

/// The most calls that wait for one script of one queue; more are refused.
const WAITING_MAX: usize = 16_384;
/// The most calls in one run, and about the most bytes of them.
const CALLS_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;
/// The most runs under way at once: one, because what comes meanwhile makes the next one larger,
/// and a run costs the server about as much as two jobs.
const RUNS_MAX: usize = 1;

/// How often others go first before a run is put together: whoever was just answered may ask again at
/// once and go with those that wait. Where nobody does, this takes about a microsecond.
const YIELDS: usize = 3;

/// One call: what it asks, as arguments of the script, and who waits for the answer.
pub(super) struct Ask<R> {
    pub(super) arguments: Vec<Vec<u8>>,
    pub(super) answer: oneshot::Sender<Result<R, Error>>,
}

/// Where calls to one script of one queue wait.
pub(super) struct Gather<R> {
    asks: mpsc::Sender<Ask<R>>,
}

impl<R: Send + 'static> Gather<R> {
    /// Starts to gather; `run` answers a batch, one answer per call.
    pub(super) fn start<F, A>(runtime: &Handle, run: F) -> Self
    where
        F: Fn(Vec<Vec<Vec<u8>>>) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Vec<Result<R, Error>>, Error>> + Send + 'static,
    {
        let (asks, waiting) = mpsc::channel(WAITING_MAX);
        runtime.spawn(drive(waiting, Arc::new(run)));
        Self { asks }
    }

    /// Asks at once; the answer comes when the server has given it.
    pub(super) fn ask(&self, arguments: Vec<Vec<u8>>) -> Call<R> {
        let (answer, answered) = oneshot::channel();
        if self.asks.try_send(Ask { arguments, answer }).is_err() {
            let message = "too many calls wait for the server";
            return Call::ready(Err(Error::new(ErrorKind::Unavailable, message)));
        }
        let gone = |_| Error::new(ErrorKind::Unknown, "the backend is being shut down");
        Call::pending(async move { answered.await.map_err(gone)? })
    }
}

async fn drive<R, F, A>(mut waiting: mpsc::Receiver<Ask<R>>, run: Arc<F>)
where
    R: Send + 'static,
    F: Fn(Vec<Vec<Vec<u8>>>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Vec<Result<R, Error>>, Error>> + Send + 'static,
{
    let runs = Arc::new(Semaphore::new(RUNS_MAX));
    loop {
        let Ok(turn) = Arc::clone(&runs).acquire_owned().await else { return };
        let Some(first) = waiting.recv().await else { return };
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        let mut bytes = size(&first);
        let mut batch = vec![first];
        while batch.len() < CALLS_MAX && bytes < BYTES_MAX {
            let Ok(ask) = waiting.try_recv() else { break };
            bytes += size(&ask);
            batch.push(ask);
        }
        let run = Arc::clone(&run);
        tokio::spawn(async move {
            let (asked, answers): (Vec<_>, Vec<_>) =
                batch.into_iter().map(|ask| (ask.arguments, ask.answer)).unzip();
            hand_out(run(asked).await, answers);
            drop(turn);
        });
    }
}

fn size<R>(ask: &Ask<R>) -> usize {
    ask.arguments.iter().map(Vec::len).sum()
}

fn hand_out<R>(
    outcome: Result<Vec<Result<R, Error>>, Error>,
    answers: Vec<oneshot::Sender<Result<R, Error>>>,
) {
    match outcome {
        Ok(results) => {
            // Nobody waits any more if this fails.
            results.into_iter().zip(answers).for_each(|(result, answer)| drop(answer.send(result)));
        }
        Err(error) => {
            for answer in answers {
                let _ = answer.send(Err(Error::new(error.kind(), error.to_string())));
            }
        }
    }
}
