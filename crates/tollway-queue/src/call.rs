//! A call of a backend, to be awaited: its answer is there already, or comes after a while.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Reply;
use crate::error::{Error, ErrorKind};

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A call of a backend: its answer is there already, or comes after a while. Await it.
///
/// # Cancel safety
///
/// A call that is dropped before it is ready may or may not have taken effect. A lease that was
/// granted to nobody returns to its group when it expires.
#[must_use = "a call says nothing of its outcome until it is awaited"]
pub struct Call<T>(State<T>);

enum State<T> {
    Ready(Result<T, Error>),
    Pending(Boxed<T>),
    /// Kept as the backend gave it: a second boxed future would be one more allocation per call.
    Replying(Boxed<Reply>, fn(Reply) -> Result<T, Error>),
    Taken,
}

impl<T> Call<T> {
    /// A call that is answered: to await it costs nothing.
    pub const fn ready(result: Result<T, Error>) -> Self {
        Self(State::Ready(result))
    }

    /// A call that `future` will answer.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(State::Pending(Box::pin(future)))
    }
}

impl Call<Reply> {
    /// The same call, its reply read as what the operation is answered with.
    pub(crate) fn read<T: TryFrom<Reply, Error = Error>>(self) -> Call<T> {
        Call(match self.0 {
            State::Ready(result) => State::Ready(result.and_then(T::try_from)),
            State::Pending(future) => State::Replying(future, T::try_from),
            // `Reply` itself is read only once.
            State::Replying(..) | State::Taken => State::Taken,
        })
    }
}

impl<T: Unpin> Future for Call<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match &mut this.0 {
            State::Pending(future) => return future.as_mut().poll(context),
            State::Replying(future, read) => {
                return future.as_mut().poll(context).map(|reply| reply.and_then(*read));
            }
            State::Ready(_) | State::Taken => {}
        }
        match std::mem::replace(&mut this.0, State::Taken) {
            State::Ready(result) => Poll::Ready(result),
            _ => Poll::Ready(Err(Error::new(ErrorKind::Misuse, "a call was awaited twice"))),
        }
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_ready = matches!(self.0, State::Ready(_));
        f.debug_struct("Call").field("is_ready", &is_ready).finish_non_exhaustive()
    }
}
