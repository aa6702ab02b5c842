//! Space that is set aside beside a file of queues, and given up when the disk is full.
//!
//! ```text
//!   well   file │ reserve        every call is served
//!   full   file │ (given up)     the file is opened anew and folded in that space; jobs are
//!                                leased, settled and read as ever, new ones are refused
//!   well   the reserve can be set aside again: there is room once more
//! ```
//!
//! Without it a full disk would stop everything: the journal cannot be folded, so the file cannot
//! be opened after the commit that failed, and work that is done cannot be settled and is done
//! again.
//!
//! Bytes without a pattern are written, not a length set: a file system that stores holes, or
//! compresses, would set nothing aside.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracing::{error, info};

use crate::error::{Error, ErrorKind};

/// How often a full disk is looked at for room.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Space that is set aside.
pub trait Reserve: Send {
    /// Sets the space aside, unless it is already.
    ///
    /// # Errors
    ///
    /// If there is not as much; then nothing is set aside.
    fn set_aside(&mut self) -> io::Result<()>;

    /// Gives the space up.
    fn give_up(&mut self);
}

/// A file that takes up space.
#[derive(Debug)]
pub(super) struct ReserveFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

impl Reserve for ReserveFile {
    fn set_aside(&mut self) -> io::Result<()> {
        if std::fs::metadata(&self.path).is_ok_and(|found| found.len() == self.bytes) {
            return Ok(());
        }
        let written = self.write();
        if written.is_err() {
            self.give_up();
        }
        written
    }

    fn give_up(&mut self) {
        // One that cannot be removed takes up space, and nothing worse.
        drop(std::fs::remove_file(&self.path));
    }
}

impl ReserveFile {
    fn write(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file: File = options.open(&self.path)?;
        let mut block = [0; 64 << 10];
        let (mut left, mut state) = (self.bytes, 0x9e37_79b9_7f4a_7c15_u64);
        while left > 0 {
            for word in block.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            let count = left.min(block.len() as u64);
            file.write_all(&block[..count as usize])?;
            left -= count;
        }
        // Some file systems find out only now that there is no room.
        file.sync_all()
    }
}

/// Whether there is room for new jobs.
pub(super) struct Space {
    reserve: Option<Box<dyn Reserve>>,
    /// When to look for room again, while there is none.
    full_until: Option<Instant>,
}

impl Space {
    pub(super) const fn new(reserve: Option<Box<dyn Reserve>>) -> Self {
        Self { reserve, full_until: None }
    }

    /// Whether new jobs must be refused.
    pub(super) const fn is_full(&self) -> bool {
        self.full_until.is_some()
    }

    /// Sets the reserve aside at the start, or after the disk was full and some time has passed.
    pub(super) fn look(&mut self, is_start: bool) {
        let Some(reserve) = &mut self.reserve else { return };
        let is_due = self.full_until.is_some_and(|until| until <= Instant::now());
        if !is_start && !is_due {
            return;
        }
        match reserve.set_aside() {
            Ok(()) if is_due => {
                info!("there is room for the queue file again: new jobs are taken");
                self.full_until = None;
            }
            Ok(()) => {}
            Err(error) => {
                if is_start {
                    error!(%error, "no room for a reserve beside the queue file: no new jobs");
                }
                self.full_until = Some(Instant::now() + LOOK_AGAIN);
            }
        }
    }

    /// Gives the reserve up, since a commit found no space. Without one nothing changes: jobs are
    /// taken or not as the disk has it.
    pub(super) fn run_out(&mut self, cause: &Error) {
        let Some(reserve) = &mut self.reserve else {
            error!(%cause, "the disk is full, and there is no reserve");
            return;
        };
        reserve.give_up();
        if self.full_until.is_none() {
            error!(%cause, "the disk is full: no new jobs until there is room; others go on");
        }
        self.full_until = Some(Instant::now() + LOOK_AGAIN);
    }

    /// What a call is told that would add to the file.
    pub(super) fn refusal() -> Error {
        let message = "no space is left for new jobs; those in the queue file are served";
        Error::new(ErrorKind::NoSpace, message)
    }

    /// Gives the reserve up with the process: the next one sets aside its own.
    pub(super) fn close(&mut self) {
        if let Some(reserve) = &mut self.reserve {
            reserve.give_up();
        }
    }
}
