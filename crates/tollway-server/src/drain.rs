//! Stopping: told once, heard by everything that waits.
//!
//! Every request of every connection waits for its next bytes or for the end. So a listener puts
//! itself on the list of those to wake once, not once per request: the list is shared by all
//! threads, and each would take its lock for nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;

/// Tells every connection to stop.
#[derive(Debug)]
pub(crate) struct Stopper {
    sender: watch::Sender<bool>,
    told: Arc<AtomicBool>,
}

/// Hears when to stop.
pub(crate) struct Stop {
    receiver: watch::Receiver<bool>,
    told: Arc<AtomicBool>,
    listening: Option<Listening>,
}

/// A place on the list, and who is woken by it.
struct Listening {
    waker: Waker,
    _heard: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl Stopper {
    /// A stopper, and the first to hear it.
    pub(crate) fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(false);
        let told = Arc::new(AtomicBool::new(false));
        (Self { sender, told: Arc::clone(&told) }, Stop { receiver, told, listening: None })
    }

    /// Tells everybody.
    pub(crate) fn stop(&self) {
        // Before anybody is woken: whoever wakes looks here.
        self.told.store(true, Ordering::Release);
        self.sender.send_replace(true);
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Stop {
    /// Waits until told to stop, or until there is nobody left to tell it.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub(crate) async fn stopped(&mut self) {
        poll_fn(|context| self.poll_stopped(context)).await;
    }

    /// Whether it has been told.
    pub(crate) fn is_stopped(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    fn poll_stopped(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_stopped() {
            return Poll::Ready(());
        }
        if let Some(listening) = &self.listening
            && listening.waker.will_wake(context.waker())
        {
            return Poll::Pending;
        }
        let mut receiver = self.receiver.clone();
        let mut heard = Box::pin(async move {
            let _ = receiver.wait_for(|&told| told).await;
        });
        if heard.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        self.listening = Some(Listening { waker: context.waker().clone(), _heard: heard });
        Poll::Pending
    }
}

impl Clone for Stop {
    fn clone(&self) -> Self {
        let (receiver, told) = (self.receiver.clone(), Arc::clone(&self.told));
        Self { receiver, told, listening: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_is_told_once_asked_or_many_times() {
        let (stopper, mut stop) = Stopper::new();
        let mut other = stop.clone();
        for _ in 0..3 {
            let waits = poll_fn(|context| Poll::Ready(stop.poll_stopped(context).is_pending()));
            assert!(waits.await && !stop.is_stopped());
        }
        let waiting = tokio::spawn(async move { other.stopped().await });
        tokio::task::yield_now().await;
        stopper.stop();
        stop.stopped().await;
        waiting.await.unwrap();
        stop.clone().stopped().await;
    }

    #[tokio::test]
    async fn nobody_left_to_tell_is_told() {
        let (stopper, mut stop) = Stopper::new();
        let waiting = tokio::spawn(async move { stop.stopped().await });
        tokio::task::yield_now().await;
        drop(stopper);
        waiting.await.unwrap();
    }
}
