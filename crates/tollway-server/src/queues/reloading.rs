//! Reloading: what the files say of queues now, put in force beside the jobs that run.
//!
//! Reading files takes no call of the store; what they say is offered to it by a task, once a
//! second until it is taken, and what is not taken yet is told. A queue that is removed from the
//! files stays with its jobs, as it does if the service starts without it: nobody must lose jobs by
//! an edit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tollway_queue::{Error, ErrorKind, TextDigest};
use tracing::{error, warn};

use super::{MAKE_AGAIN, QueuePlan, Queues};

/// How long a reload that somebody asks for waits until its queues are changed.
const CHANGED_WITHIN: Duration = Duration::from_secs(5);

/// What of the files is yet to be put in force.
#[derive(Debug, Default)]
pub(super) struct Reloading {
    state: watch::Sender<State>,
    /// Held by the task that offers: the last plan is to be offered last.
    alone: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Sections that were edited, until the store has taken them.
    edited: HashSet<TextDigest>,
    /// Why the store has not taken all.
    wrong: Option<String>,
    /// Which plan it is, counted.
    plan: u64,
}

impl State {
    /// What of the files is not in force.
    fn reason(&self) -> Option<String> {
        let wrong = self.wrong.as_deref().unwrap_or("about to be changed");
        (!self.edited.is_empty()).then(|| format!("queues: {wrong}"))
    }
}

/// What stands for every section.
fn digests(plan: &QueuePlan) -> HashSet<TextDigest> {
    let limits = plan.shared.iter().map(|limit| limit.digest);
    limits.chain(plan.queues.iter().map(|queue| queue.digest)).collect()
}

impl Queues {
    /// Puts in force what files say now; soon, if the store is away.
    pub(crate) fn reload(&self, mut plan: QueuePlan) {
        let before = self.plan.load_full();
        // The store is chosen at the start.
        plan.store.clone_from(&before.store);
        let edited = &digests(&plan) - &digests(&before);
        let gone = before.queues.iter().filter(|queue| plan.queue(&queue.name).is_none());
        for queue in gone {
            let remedy = "DELETE /v1/queues/NAME removes it";
            warn!(
                queue = queue.name.as_str(),
                remedy, "no longer in the file: stays, with its jobs"
            );
        }
        if !plan.is_empty() {
            self.note_use();
        }
        self.plan.store(Arc::new(plan));
        if let Err(wrong) = self.push() {
            // Configurations with such a target are refused before.
            error!(%wrong, "the targets of before stay");
        }
        self.reloading.state.send_modify(|state| {
            state.edited.extend(edited);
            state.plan += 1;
        });
        let number = self.reloading.state.borrow().plan;
        self.runtime.spawn(self.clone().offer_edits(number));
    }

    /// Offers what was edited until the store takes it, or another plan is there.
    async fn offer_edits(self, number: u64) {
        let _alone = self.reloading.alone.lock().await;
        loop {
            if self.reloading.state.borrow().plan != number {
                return;
            }
            let Err(error) = self.offer_once().await else { return };
            let wrong = Some(error.to_string());
            // Logged once, not once a second.
            if self.reloading.state.borrow().wrong != wrong {
                error!(%error, "the queue settings in the files are not in force yet");
                self.reloading.state.send_modify(|state| state.wrong = wrong);
            }
            tokio::time::sleep(MAKE_AGAIN).await;
        }
    }

    async fn offer_once(&self) -> Result<(), Error> {
        // What is made for the first time takes the plan as it is now.
        if self.made.borrow().is_none() {
            return Err(Error::new(ErrorKind::Unavailable, "the queue store is away"));
        }
        let edited = self.reloading.state.borrow().edited.clone();
        if edited.is_empty() {
            return Ok(());
        }
        self.offer(&self.plan.load_full(), |section| edited.contains(section)).await?;
        self.reloading.state.send_modify(|state| {
            state.edited.retain(|section| !edited.contains(section));
            state.wrong = None;
        });
        Ok(())
    }

    /// What of the files is not in force.
    pub(crate) fn stale_reason(&self) -> Option<String> {
        self.reloading.state.borrow().reason()
    }

    /// Waits for a moment until what files say is in force; why it is not, otherwise.
    pub(crate) async fn reloaded(&self) -> Result<(), String> {
        let mut states = self.reloading.state.subscribe();
        let done = states.wait_for(|state| state.edited.is_empty());
        // The sender is there as long as the queues are; what counts is what is pending then.
        drop(tokio::time::timeout(CHANGED_WITHIN, done).await);
        self.stale_reason().map_or(Ok(()), Err)
    }
}
