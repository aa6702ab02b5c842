//! What a backend answers: at once, or after a while.
//!
//! The same idea as `tollway_core::Answer`, which carries a store's error and borrows nothing: a
//! queue fails in ways of its own, and its backends may answer out of themselves. One type for both
//! would be generic in every signature of both traits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::{Error, ErrorKind};

/// What a backend answers: at once, or after a while. Await it.
///
/// # Cancel safety
///
/// An answer that is dropped before it is ready may or may not have taken effect. A lease that was
/// granted to nobody returns to its group when it expires.
#[must_use = "an answer does nothing until it is awaited"]
pub enum Answer<'a, T> {
    /// Known already: awaiting it costs nothing.
    Ready(Result<T, Error>),
    /// Under way.
    Pending(Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>),
    /// Awaited already.
    Taken,
}

impl<'a, T> Answer<'a, T> {
    /// The answer that `future` will give.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'a) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// An answer that failed already.
    pub fn error(error: Error) -> Self {
        Self::Ready(Err(error))
    }
}

impl<'a, T: Send + Unpin + 'a> Answer<'a, T> {
    /// The same answer, turned into another by `map`.
    pub fn and_then<U>(self, map: impl FnOnce(T) -> Result<U, Error> + Send + 'a) -> Answer<'a, U> {
        match self {
            Self::Ready(result) => Answer::Ready(result.and_then(map)),
            Self::Pending(future) => Answer::pending(async move { future.await.and_then(map) }),
            Self::Taken => Answer::Taken,
        }
    }
}

impl<T: Unpin> Future for Answer<'_, T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Self::Pending(future) = this {
            return future.as_mut().poll(context);
        }
        match std::mem::replace(this, Self::Taken) {
            Self::Ready(result) => Poll::Ready(result),
            Self::Pending(_) | Self::Taken => {
                Poll::Ready(Err(Error::new(ErrorKind::Misuse, "an answer was awaited twice")))
            }
        }
    }
}

impl<T> fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Answer::Ready",
            Self::Pending(_) => "Answer::Pending",
            Self::Taken => "Answer::Taken",
        })
    }
}
