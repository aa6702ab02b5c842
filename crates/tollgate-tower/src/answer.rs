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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::Waker;

    use tollgate_core::{
        Charge, Grant, ReservationId, Reserved, Settlement, Snapshot, Timestamp, Verdict,
    };

    use super::*;

    /// A store on the heap whose answers read it when they are asked, and when they are dropped.
    #[derive(Default)]
    struct Watched {
        diary: Arc<Mutex<Vec<&'static str>>>,
        alive: Vec<u8>,
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.alive.fill(0);
            self.diary.lock().unwrap().push("store dropped");
        }
    }

    /// Reads the store once more at its end.
    struct Reader<'a>(&'a Watched);

    impl Drop for Reader<'_> {
        fn drop(&mut self) {
            assert!(self.0.alive.iter().all(|byte| *byte == 7), "read after it was freed");
            self.0.diary.lock().unwrap().push("answer dropped");
        }
    }

    impl Store for Watched {
        fn check(&self, _: &[Charge<'_>], _: Timestamp) -> Answer<'_, Verdict> {
            let reader = Reader(self);
            let mut polled = false;
            Answer::Pending(Box::pin(std::future::poll_fn(move |_| {
                // The whole of it is to be captured, not the reference inside.
                let reader = &reader;
                assert!(reader.0.alive.iter().all(|byte| *byte == 7), "read after it was freed");
                match std::mem::replace(&mut polled, true) {
                    false => Poll::Pending,
                    true => Poll::Ready(Ok(Verdict::new(Vec::new()))),
                }
            })))
        }

        fn peek(&self, _: &[Charge<'_>], _: Timestamp) -> Answer<'_, Verdict> {
            Answer::Taken
        }

        fn take(&self, _: &Charge<'_>, _: Timestamp) -> Answer<'_, Grant> {
            Answer::Taken
        }

        fn refund(&self, _: &Charge<'_>, _: Timestamp) -> Answer<'_, Snapshot> {
            Answer::Taken
        }

        fn reset(&self, _: &Charge<'_>, _: Timestamp) -> Answer<'_, ()> {
            Answer::Taken
        }

        fn reserve(&self, _: &[Charge<'_>], _: Timestamp) -> Answer<'_, Reserved> {
            Answer::Taken
        }

        fn commit(&self, _: ReservationId, _: &[u64], _: Timestamp) -> Answer<'_, Settlement> {
            Answer::Taken
        }

        fn cancel(&self, _: ReservationId, _: Timestamp) -> Answer<'_, Settlement> {
            Answer::Taken
        }

        fn release(&self, _: ReservationId, _: Timestamp) {}
    }

    fn kept() -> (Kept<Verdict>, Arc<Mutex<Vec<&'static str>>>) {
        let diary = Arc::default();
        let watched = Watched { diary: Arc::clone(&diary), alive: vec![7; 4096] };
        let store: Arc<dyn Store> = Arc::new(watched);
        let Asked::Later(kept) = ask(&store, |store| store.check(&[], Timestamp::MIN)) else {
            panic!("the store answers later");
        };
        (kept, diary)
    }

    #[test]
    fn an_answer_keeps_its_store_until_it_is_dropped_itself() {
        let (kept, diary) = kept();
        assert!(diary.lock().unwrap().is_empty(), "the last other owner is gone");
        // Moved about, as frameworks do with futures.
        let moved = Box::new([Some(kept)]);
        drop(moved);
        assert_eq!(*diary.lock().unwrap(), ["answer dropped", "store dropped"]);
    }

    #[test]
    fn an_answer_is_awaited_after_everybody_else_let_go_of_the_store() {
        let (kept, diary) = kept();
        let mut kept = Box::pin(kept);
        let mut context = Context::from_waker(Waker::noop());
        assert!(kept.as_mut().poll(&mut context).is_pending());
        assert!(matches!(kept.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
        assert!(diary.lock().unwrap().is_empty());
        drop(kept);
        assert_eq!(diary.lock().unwrap().len(), 2);
    }

    #[test]
    fn an_answer_that_was_taken_before_is_a_mistake() {
        let store: Arc<dyn Store> = Arc::new(Watched::default());
        let asked = ask(&store, |store| store.peek(&[], Timestamp::MIN));
        assert!(matches!(asked, Asked::Now(Err(error)) if error.kind() == ErrorKind::Misuse));
    }
}
