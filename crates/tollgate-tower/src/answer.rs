//! A store's answer that keeps its store alive, so that it can outlive the call that asked.
//!
//! A store in memory answers at once and this costs nothing. An answer still under way borrows the
//! store, and the response future that waits for it must own both. Asking again from an owned
//! `async` block instead would charge twice, and boxing every request beforehand would make the
//! fast store pay for the slow one.

use std::future::Future;
use std::mem::transmute;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tollgate_core::{Answer, ErrorKind, Store, StoreError};

type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What became of a question.
pub(crate) enum Asked<T> {
    /// Answered at once.
    Now(Result<T, StoreError>),
    /// Under way.
    Later(Kept<T>),
}

/// An answer under way, and the store it comes from.
pub(crate) struct Kept<T> {
    // Declared first so that it is dropped first: it borrows from the store.
    answer: Pending<'static, T>,
    _store: Arc<dyn Store>,
}

/// Asks `store`, and keeps it if the answer takes a while.
#[inline(always)]
pub(crate) fn ask<T>(
    store: &Arc<dyn Store>,
    question: impl for<'a> FnOnce(&'a dyn Store) -> Answer<'a, T>,
) -> Asked<T> {
    let answer = match question(&**store) {
        Answer::Pending(answer) => answer,
        Answer::Ready(result) => return Asked::Now(result),
        Answer::Taken => {
            let message = "the store gave an answer that was awaited before";
            return Asked::Now(Err(StoreError::new(ErrorKind::Misuse, message)));
        }
    };
    // SAFETY: `question` is generic over the lifetime, so the answer can borrow nothing but the
    // store. The store lives in an `Arc` whose clone is kept beside the answer: its address does
    // not change, it is not dropped before the answer (field order in `Kept`, which never gives
    // the answer away), and only shared references to it exist.
    let answer = unsafe { transmute::<Pending<'_, T>, Pending<'static, T>>(answer) };
    Asked::Later(Kept { answer, _store: Arc::clone(store) })
}

impl<T> Future for Kept<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.as_mut().poll(context)
    }
}
