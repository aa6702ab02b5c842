//! The pushing of jobs to the targets that the configuration names.
//!
//! A reload starts workers for new targets, ends those of targets that are gone or changed, and
//! leaves the others alone. One that ends leases nothing more, and waits for its calls under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollway_queue::push::{Push, PushTarget};
use tollway_queue::{Error, ErrorKind, QueueName, Summary, Task, Worker, handler_fn};
use tower_service::Service;

use super::{MAKE_AGAIN, Queues};

/// The workers that push jobs.
#[derive(Debug, Default)]
pub(super) struct Pushing(Mutex<Workers>);

#[derive(Debug, Default)]
struct Workers {
    by_queue: HashMap<QueueName, PushWorker>,
    /// Those that were told to stop.
    ending: Vec<JoinHandle<Result<Summary, Error>>>,
}

#[derive(Debug)]
struct PushWorker {
    target: PushTarget,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<Summary, Error>>,
}

impl Pushing {
    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workers {
    fn end(&mut self, queue: &QueueName) {
        if let Some(worker) = self.by_queue.remove(queue) {
            worker.stop.send_replace(true);
            self.ending.retain(|task| !task.is_finished());
            self.ending.push(worker.task);
        }
    }
}

impl Queues {
    /// Pushes the jobs of those queues that have a target, and of no others.
    ///
    /// # Errors
    ///
    /// If a target cannot be used; then nothing is changed.
    pub fn push(&self) -> Result<(), Error> {
        let plan = self.plan.load_full();
        let targets = plan
            .queues
            .iter()
            .filter_map(|planned| planned.push.as_ref().map(|target| (&planned.name, target)));
        let targets: HashMap<&QueueName, &PushTarget> = targets.collect();
        let mut workers = self.pushing.workers();
        let is_same = |(name, worker): (&QueueName, &PushWorker)| {
            targets.get(name).is_some_and(|target| **target == worker.target)
        };
        let started = targets.iter().filter(|(name, target)| {
            workers.by_queue.get(**name).is_none_or(|worker| worker.target != ***target)
        });
        let started = started.map(|(name, target)| Ok((*name, *target, Push::new(target)?)));
        let started = started.collect::<Result<Vec<_>, Error>>()?;
        let ended = workers.by_queue.iter().filter(|worker| !is_same(*worker));
        let ended: Vec<QueueName> = ended.map(|(name, _)| name.clone()).collect();
        ended.iter().for_each(|name| workers.end(name));
        for (name, target, push) in started {
            let (stop, stopped) = watch::channel(false);
            let task = self.runtime.spawn(self.clone().push_jobs(
                name.clone(),
                target.clone(),
                push,
                stopped,
            ));
            let worker = PushWorker { target: target.clone(), stop, task };
            workers.by_queue.insert(name.clone(), worker);
        }
        Ok(())
    }

    async fn push_jobs(
        self,
        name: QueueName,
        target: PushTarget,
        mut push: Push,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<Summary, Error> {
        let watch = Arc::clone(&self.watch);
        let push = handler_fn(move |task: Task| {
            watch.leased(task.queue().name().as_str(), [task.lease()], task.queue().now());
            let call = push.call(task);
            async move { call.await.unwrap_or_else(|never| match never {}) }
        });
        let worker = Worker::new(self.queue(name));
        let worker = worker.name("push").concurrency(target.concurrency).grace(target.timeout);
        loop {
            let mut heard = stopped.clone();
            // Nobody is left to stop it if this fails: it stops.
            let told = async move { drop(heard.wait_for(|stop| *stop).await) };
            match worker.clone().run(push.clone(), told).await {
                // Not made yet, or lost with the store's data.
                Err(error) if error.kind() == ErrorKind::UnknownQueue => self.make_soon(),
                Err(error) => {
                    tracing::error!(%error, "a queue is no longer pushed");
                    return Err(error);
                }
                ended => return ended,
            }
            let is_stopped = tokio::select! {
                () = tokio::time::sleep(MAKE_AGAIN) => false,
                _ = stopped.wait_for(|stop| *stop) => true,
            };
            if is_stopped {
                return Ok(Summary::default());
            }
        }
    }

    /// Leases nothing more to be pushed, and waits for the calls under way.
    pub async fn stop_pushing(&self) {
        let ending = {
            let mut workers = self.pushing.workers();
            let names: Vec<QueueName> = workers.by_queue.keys().cloned().collect();
            names.iter().for_each(|name| workers.end(name));
            std::mem::take(&mut workers.ending)
        };
        for task in ending {
            // What went wrong was logged when it did.
            drop(task.await);
        }
    }
}
