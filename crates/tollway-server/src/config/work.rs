//! How much reading a configuration costs, counted in tests alone: a clock would measure the
//! machine.

#[cfg(test)]
thread_local! {
    static DONE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts bytes looked at, or comparisons made.
#[inline]
pub(super) fn done(_steps: usize) {
    #[cfg(test)]
    DONE.with(|done| done.set(done.get() + _steps));
}

/// What `work` cost in this thread.
#[cfg(test)]
pub(super) fn of(work: impl FnOnce()) -> usize {
    let before = DONE.with(std::cell::Cell::get);
    work();
    DONE.with(std::cell::Cell::get) - before
}
