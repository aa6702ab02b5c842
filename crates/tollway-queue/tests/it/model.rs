//! Random histories against a naive reference.
//!
//! [`play`] runs on any [`Backend`]: whatever a lease call returns must be the head of its group in
//! the reference, allowed by its limits, and nothing that could start may be left out.

mod player;
mod reference;

use std::time::Duration;

use tollway_queue::{Backend, Embedded};

use tollway_testkit::servers::full;

use player::Player;

/// How much the reference must hold for: more in the long run, `TOLLWAY_FULL=1`.
pub(crate) fn operations() -> usize {
    if full() { 1_000_000 } else { 20_000 }
}

/// A backend under test, which may be crashed and opened again.
pub(crate) trait Subject {
    fn backend(&self) -> &dyn Backend;

    /// Crashes it and opens it again; whether it can do that.
    fn crash(&mut self) -> bool {
        false
    }

    /// Whether who waits is told within the call that changes something.
    fn hears_at_once(&self) -> bool {
        true
    }

    /// How far its clock may be behind what it was before, if not as far as it likes.
    fn clock_is_behind_max(&self) -> Option<Duration> {
        None
    }
}

struct Memory(Embedded);

impl Subject for Memory {
    fn backend(&self) -> &dyn Backend {
        &self.0
    }
}

#[cfg(feature = "redb")]
struct File {
    disk: crate::crash::Disk,
    queues: Option<Embedded>,
}

#[cfg(feature = "redb")]
impl Subject for File {
    fn backend(&self) -> &dyn Backend {
        self.queues.as_ref().expect("open")
    }

    fn crash(&mut self) -> bool {
        self.queues = None;
        self.queues = Some(open(&self.disk));
        true
    }
}

pub(crate) fn in_memory() -> Box<dyn Subject> {
    Box::new(Memory(Embedded::memory()))
}

#[cfg(feature = "redb")]
pub(crate) fn in_a_file() -> Box<dyn Subject> {
    let disk = crate::crash::Disk::new();
    Box::new(File { disk: disk.clone(), queues: Some(open(&disk)) })
}

/// A file on a disk that need not turn, whose journal is folded now and then: both are tried.
#[cfg(feature = "redb")]
fn open(disk: &crate::crash::Disk) -> Embedded {
    Embedded::open_with(crate::crash::on(disk, true, 20_000)).expect("opens")
}

#[test]
fn random_histories_in_memory_agree_with_the_reference() {
    let operations = operations();
    for seed in 1..=5 {
        play(&mut Memory(Embedded::memory()), seed, operations / 5);
    }
}

#[cfg(feature = "redb")]
#[test]
fn random_histories_in_a_file_agree_with_the_reference_and_leave_no_rows() {
    let operations = if full() { operations() } else { operations() / 10 };
    for seed in 1..=2 {
        let disk = crate::crash::Disk::new();
        let mut subject = File { disk: disk.clone(), queues: Some(open(&disk)) };
        play(&mut subject, seed, operations / 2);
        drop(subject);
        assert_eq!(crate::crash::rows(&disk), [("head", 2), ("queues", 1)].into());
    }
}

/// Plays a random history of `operations`, then drains the queue and looks for residue.
pub(crate) fn play(subject: &mut dyn Subject, seed: u64, operations: usize) {
    play_jobs(subject, Jobs::Any, seed, operations);
}

/// What jobs there are in a history.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jobs {
    Any,
    /// Of one unit and one priority, seldom delayed: what a backend may have shorter ways for.
    Plain,
}

/// Plays a random history of `operations` with such jobs.
pub(crate) fn play_jobs(subject: &mut dyn Subject, jobs: Jobs, seed: u64, operations: usize) {
    let mut player = Player::new(subject, jobs, seed);
    for _ in 0..operations {
        player.step();
    }
    player.drain();
}
