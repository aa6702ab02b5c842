//! A worker: leases jobs as they become ready, runs them, keeps their leases, settles them.
//!
//! ```text
//!   lease ──> task ──> handler ──> outcome ──> settle
//!     ^         └─ heartbeats: one call for all tasks, three per lease time
//!     └── sleeps until the backend's next ready time, or until that changes; never polls
//! ```
//!
//! The handler is any [`tower_service::Service`] of [`Task`], so tower's layers (timeouts, limits,
//! retries) go in front of it; [`handler_fn`] makes one of a function.
//!
//! **Invariants.** At most `concurrency` jobs run at once, and none is leased that could not start
//! at once. A job whose lease is lost is stopped: its future is dropped. On shutdown nothing more
//! is leased; running jobs get the grace to end, and those that do not are settled as failed, since
//! their calls may have been made.

mod run;
mod task;

use std::convert::Infallible;
use std::future::Future;
use std::task::{Context, Poll};
use std::time::Duration;

pub use run::Summary;
pub use task::Task;

use crate::{Outcome, Queue};

/// A worker on one queue.
///
/// ```no_run
/// # async fn example(queue: tollway_queue::Queue) -> Result<(), tollway_queue::Error> {
/// use tollway_queue::{Outcome, Task, Worker, handler_fn};
///
/// let handler = handler_fn(|task: Task| async move {
///     println!("{:?}", task.lease().payload);
///     Outcome::Done { result: None }
/// });
/// let stop = async { tokio::signal::ctrl_c().await.unwrap_or(()) };
/// Worker::new(queue).concurrency(8).run(handler, stop).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Worker {
    queue: Queue,
    name: String,
    concurrency: usize,
    grace: Duration,
}

impl Worker {
    /// The most jobs that one worker may run at once.
    pub const CONCURRENCY_MAX: usize = 10_000;

    /// A worker on `queue` that runs one job at a time.
    pub fn new(queue: Queue) -> Self {
        let name = format!("worker-{}", std::process::id());
        Self { queue, name, concurrency: 1, grace: Duration::from_secs(20) }
    }

    /// The same worker under another name, which [`crate::JobState::Running`] tells.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The same worker with up to `jobs` at once, at least 1.
    #[must_use]
    pub fn concurrency(self, jobs: usize) -> Self {
        Self { concurrency: jobs.clamp(1, Self::CONCURRENCY_MAX), ..self }
    }

    /// The same worker that lets running jobs take this long to end on shutdown; 20 s unless told.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }
}

/// A handler made of a function.
pub const fn handler_fn<F>(function: F) -> HandlerFn<F> {
    HandlerFn(function)
}

/// A handler made of a function; see [`handler_fn`].
#[derive(Clone, Copy, Debug)]
pub struct HandlerFn<F>(F);

impl<F, A> tower_service::Service<Task> for HandlerFn<F>
where
    F: FnMut(Task) -> A,
    A: Future<Output = Outcome>,
{
    type Response = Outcome;
    type Error = Infallible;
    type Future = HandlerFuture<A>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, task: Task) -> HandlerFuture<A> {
        HandlerFuture { future: (self.0)(task) }
    }
}

pin_project_lite::pin_project! {
    /// The future of a function that cannot fail.
    #[derive(Debug)]
    pub struct HandlerFuture<A> {
        #[pin]
        future: A,
    }
}

impl<A: Future<Output = Outcome>> Future for HandlerFuture<A> {
    type Output = Result<Outcome, Infallible>;

    fn poll(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().future.poll(context).map(Ok)
    }
}
