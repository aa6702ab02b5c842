//! A page of jobs: bounded in number and in bytes.

use crate::backend::PAGE_BYTES;

/// What still fits into a page.
#[derive(Debug)]
pub(super) struct Page {
    jobs: usize,
    bytes: usize,
}

impl Page {
    /// An empty page of at most `max` jobs.
    pub(super) const fn of(max: usize) -> Self {
        Self { jobs: max, bytes: PAGE_BYTES }
    }

    pub(super) const fn has_room(&self) -> bool {
        self.jobs > 0 && self.bytes > 0
    }

    /// Counts a job of `bytes`; the one that fills the page is its last.
    pub(super) const fn add(&mut self, bytes: usize) {
        self.jobs -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
