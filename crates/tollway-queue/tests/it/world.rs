//! Driving a backend in virtual time.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tollway_core::Timestamp;
use tollway_queue::{
    Author, Backend, Beat, Call, Cancelled, Changed, Described, EndMark, Ended, Enqueued, Error,
    ErrorKind, Group, Job, JobId, LeaseToken, Leased, Limit, NewJob, Operation, Outcome, Progress,
    QueueName, QueueSettings, Recurring, Reply, Settled, Start, Stats,
};

macro_rules! operations {
    ($($call:ident($($argument:ident: $type:ty),*) -> $reply:ty =
        $operation:ident $(($($value:expr),*))? $({ $($field:tt)* })?;)*) => {
        $(fn $call(&self, queue: &QueueName, $($argument: $type,)* now: Timestamp) -> Call<$reply> {
            let operation = Operation::$operation $(($($value),*))? $({ $($field)* })?;
            typed(self.on(queue, operation, now))
        })*
    };
}

/// Some Sunday in 2026, far from the edges of time.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_794_700_000_000);

/// Waits for an answer, at most a minute: storage threads answer from elsewhere.
pub(crate) fn now_or_soon<T: Unpin>(answer: Call<T>) -> Result<T, Error> {
    let mut answer = pin!(answer);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Poll::Ready(result) = answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        assert!(Instant::now() < deadline, "no answer within a minute");
        std::thread::park_timeout(Duration::from_secs(60));
    }
}

/// Goes on with a thread that waits for an answer.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The answer, which must be right and come soon.
pub(crate) fn get<T: Unpin>(answer: Call<T>) -> T {
    now_or_soon(answer).expect("the backend answers")
}

/// The answer, if it is there already.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    std::pin::Pin::new(future).poll(&mut context)
}

pub(crate) fn after(seconds: f64) -> Timestamp {
    START.after(Duration::from_secs_f64(seconds))
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue's name")
}

pub(crate) fn group(name: &str) -> Group {
    Group::new(name).expect("a group's name")
}

pub(crate) fn job(of: &str) -> NewJob {
    NewJob::new(group(of), "x")
}

/// A small generator of numbers, the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// A number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The calls of a queue at a given moment, on any backend.
pub(crate) trait AtMoment: Backend {
    fn settle_one(
        &self,
        queue: &QueueName,
        token: LeaseToken,
        outcome: Outcome,
        now: Timestamp,
    ) -> Call<Settled> {
        let settled = self.settle(queue, vec![(token, outcome)], now);
        Call::pending(async move {
            match settled.await?[0] {
                Settled::Lost => Err(Error::new(ErrorKind::LeaseLost, "the lease is over")),
                settled => Ok(settled),
            }
        })
    }

    fn recurring(&self, queue: &QueueName) -> Call<Vec<Recurring>> {
        typed(self.on(queue, Operation::Recurring, START))
    }

    operations! {
        put_queue(settings: QueueSettings) -> Changed =
            Change { settings: Box::new(settings), author: Author::CALL };
        change(settings: QueueSettings, author: Author) -> Changed =
            Change { settings: Box::new(settings), author };
        describe() -> Described = Describe;
        remove_queue() -> bool = Remove;
        remove_empty() -> bool = RemoveEmpty;
        enqueue(jobs: Vec<NewJob>) -> Vec<Enqueued> = Enqueue(jobs);
        lease(max: usize, worker: &str) -> Leased = Lease { max, worker: worker.to_owned() };
        heartbeat(tokens: &[LeaseToken]) -> Vec<Beat> = Heartbeat(tokens.to_vec());
        settle(outcomes: Vec<(LeaseToken, Outcome)>) -> Vec<Settled> = Settle(outcomes);
        progress(token: LeaseToken, progress: Progress) -> bool = Progress(token, progress);
        hold(token: LeaseToken, wait: Duration) -> bool = Hold(token, wait);
        cancel(id: JobId) -> Cancelled = Cancel(id);
        job(id: JobId) -> Option<Job> = Job(id);
        peek(group: &Group, max: usize) -> Vec<Job> = Peek { group: group.clone(), max };
        stats(after: Option<&Group>, max: usize) -> Stats = Stats { after: after.cloned(), max };
        pause(group: Option<&Group>, paused: bool) -> () = Pause { group: group.cloned(), paused };
        set_limits(group: &Group, limits: Option<Vec<Limit>>) -> () =
            SetLimits { group: group.clone(), limits };
        dead(after: Option<JobId>, max: usize) -> Vec<Job> = Dead { after, max };
        running(after: Option<JobId>, max: usize) -> Vec<Job> = Running { after, max };
        revive(id: JobId) -> bool = Revive(id);
        reschedule(id: JobId, start: Start) -> Option<Job> = Reschedule { id, start };
        ended(after: Option<EndMark>, max: usize) -> Ended = Ended { after, max };
        put_recurring(recurring: Recurring) -> () = PutRecurring(Box::new(recurring));
        remove_recurring(name: &str) -> bool = RemoveRecurring(name.to_owned());
    }
}

impl<B: Backend + ?Sized> AtMoment for B {}

fn typed<T>(call: Call<Reply>) -> Call<T>
where
    T: TryFrom<Reply, Error = Error> + Send + 'static,
{
    Call::pending(async move { call.await.and_then(T::try_from) })
}
