//! Stopping: told once, heard by everything that waits.

use tokio::sync::watch;

/// Tells every connection to stop.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Hears when to stop.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stopper {
    /// A stopper, and the first to hear it.
    #[must_use]
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), Stop(receiver))
    }

    /// Tells everybody.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Waits until told to stop, or until there is nobody left to tell it.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and asked again.
    pub async fn stopped(&mut self) {
        let _ = self.0.wait_for(|&stopped| stopped).await;
    }

    /// Whether it has been told.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }
}
