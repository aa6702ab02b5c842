//! Calls to one script of one queue, which go together in one run of it.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollway_redis::connection::{BatchBounds, Batcher};

use crate::Call;
use crate::error::{Error, ErrorKind};

const BOUNDS: BatchBounds = BatchBounds {
    waiting_max: 16_384,
    calls_max: 256,
    bytes_max: 1 << 20,
    // What comes meanwhile makes the next run larger, and a run costs the server about as much as
    // two jobs.
    in_flight_max: 1,
    // A call is repeated until its patience ends, however long a run takes.
    late_after: None,
    yields: 3,
};

/// One call: what it asks, as arguments of the script, and who waits for the answer.
struct ScriptCall<R> {
    arguments: Vec<Vec<u8>>,
    answer: oneshot::Sender<Result<R, Error>>,
}

/// Where calls to one script of one queue wait.
pub(super) struct ScriptBatcher<R>(Batcher<ScriptCall<R>>);

impl<R: Send + 'static> ScriptBatcher<R> {
    /// Starts to gather; `run` answers a batch, one answer per call.
    pub(super) fn start<F, A>(runtime: &Handle, run: F) -> Self
    where
        F: Fn(Vec<Vec<Vec<u8>>>) -> A + Send + 'static,
        A: Future<Output = Result<Vec<Result<R, Error>>, Error>> + Send + 'static,
    {
        let size = |call: &ScriptCall<R>| call.arguments.iter().map(Vec::len).sum();
        let run = move |calls: Vec<ScriptCall<R>>| {
            let (asked, answers): (Vec<_>, Vec<_>) =
                calls.into_iter().map(|call| (call.arguments, call.answer)).unzip();
            let running = run(asked);
            Some(async move { hand_out(running.await, answers) })
        };
        Self(Batcher::start(runtime, BOUNDS, size, run))
    }

    /// Asks at once; the answer comes when the server has given it.
    pub(super) fn ask(&self, arguments: Vec<Vec<u8>>) -> Call<R> {
        let (answer, answered) = oneshot::channel();
        if self.0.submit(ScriptCall { arguments, answer }).is_err() {
            let message = "too many calls wait for the server";
            return Call::ready(Err(Error::new(ErrorKind::Unavailable, message)));
        }
        let gone = |_| Error::new(ErrorKind::Unknown, "the backend is being shut down");
        Call::pending(async move { answered.await.map_err(gone)? })
    }
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
