//! Space that is set aside beside a file, and given up when the disk is full.
//!
//! ```text
//!   well   file │ reserve        every call is served
//!   full   file │ (given up)     the file is opened anew and folded in that space; what is there
//!                                is read and finished as ever, additions are refused
//!   well   the reserve can be set aside again: there is room once more
//! ```
//!
//! Without it a full disk would stop everything: the journal cannot be folded, so the file cannot
//! be opened after the commit that failed, and work of a queue that is done cannot be settled and
//! is done again.
//!
//! Bytes without a pattern are written, not a length set: a file system that stores holes, or
//! compresses, would set nothing aside.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracing::{error, info};

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
pub(crate) struct ReserveFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
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

/// What messages about space say.
#[derive(Clone, Copy, Debug)]
pub struct SpaceWords {
    /// What the file is called: "queue file".
    pub file: &'static str,
    /// What is refused while there is no room: "new jobs".
    pub additions: &'static str,
}

/// Whether there is room for additions.
pub struct Space {
    reserve: Option<Box<dyn Reserve>>,
    words: SpaceWords,
    /// When to look for room again, while there is none.
    full_until: Option<Instant>,
}

impl Space {
    /// Space beside the file of which `words` tell.
    pub const fn new(reserve: Option<Box<dyn Reserve>>, words: SpaceWords) -> Self {
        Self { reserve, words, full_until: None }
    }

    /// Whether additions must be refused.
    pub const fn is_full(&self) -> bool {
        self.full_until.is_some()
    }

    /// Sets the reserve aside at the start, or after the disk was full and some time has passed.
    pub fn look(&mut self, is_start: bool) {
        let Some(reserve) = &mut self.reserve else { return };
        let is_due = self.full_until.is_some_and(|until| until <= Instant::now());
        if !is_start && !is_due {
            return;
        }
        let SpaceWords { file, additions } = self.words;
        match reserve.set_aside() {
            Ok(()) if is_due => {
                info!("there is room for the {file} again: {additions} are taken");
                self.full_until = None;
            }
            Ok(()) => {}
            Err(error) => {
                if is_start {
                    error!(%error, "no room for a reserve beside the {file}: no {additions}");
                }
                self.full_until = Some(Instant::now() + LOOK_AGAIN);
            }
        }
    }

    /// Gives the reserve up, since a commit found no space. Without one nothing changes: additions
    /// are taken or not as the disk has it.
    pub fn run_out(&mut self, cause: &dyn std::fmt::Display) {
        let Some(reserve) = &mut self.reserve else {
            error!(%cause, "the disk is full, and there is no reserve");
            return;
        };
        reserve.give_up();
        if self.full_until.is_none() {
            let additions = self.words.additions;
            error!(%cause, "the disk is full: no {additions} until there is room; others go on");
        }
        self.full_until = Some(Instant::now() + LOOK_AGAIN);
    }

    /// Gives the reserve up with the process: the next one sets aside its own.
    pub fn close(&mut self) {
        if let Some(reserve) = &mut self.reserve {
            reserve.give_up();
        }
    }
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("is_full", &self.is_full()).finish_non_exhaustive()
    }
}
