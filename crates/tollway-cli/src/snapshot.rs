//! States from a file at the start, or without them: a bad file costs an amnesty, not an outage.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow};
use tollway_core::{Clock as _, Timestamp};
use tollway_memory::{Capacity, DumpFile, MemoryStore, SystemClock};

/// A file from further ahead than this was written by a clock that was wrong. Less than this a
/// clock may be behind: it then starts where the file says, and waits for the system's to catch up.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Where states are kept, and how the user said so.
pub(crate) struct Snapshot<'a> {
    /// The flag, for messages.
    pub(crate) flag: &'static str,
    pub(crate) path: &'a Path,
    /// Whether a file that cannot be used is an error.
    pub(crate) is_required: bool,
}

/// A store, and what there is to warn of.
pub(crate) struct Opened {
    pub(crate) memory: MemoryStore,
    /// Why it does not begin with the states of the file, if it does not.
    pub(crate) refused: Option<Refused>,
    /// Why the file cannot be written now, if it cannot: later it may be.
    pub(crate) unwritable: Option<String>,
}

/// A file that could not be used.
pub(crate) struct Refused {
    pub(crate) reason: String,
    /// Where it is now.
    pub(crate) aside: PathBuf,
}

impl Snapshot<'_> {
    /// The store with the states of the file, if it is there and good; otherwise an empty one, and
    /// the file is set aside.
    ///
    /// # Errors
    ///
    /// If nothing can be written there, or, where the file is required, if it cannot be used.
    pub(crate) fn open(&self, capacity: Capacity) -> Result<Opened> {
        let file = DumpFile::new(self.path);
        let unwritable = match file.prepare() {
            // A disk that is full must not stop what does not need it to decide.
            Err(error) if error.is_transient() && !self.is_required => {
                Some(tollway_core::explained(&error))
            }
            prepared => prepared.with_context(|| self.name()).map(|()| None)?,
        };
        let memory = match MemoryStore::restore(self.path, capacity) {
            Ok(memory) => not_from_the_future(memory),
            Err(_) if is_missing(self.path) => Ok(MemoryStore::new(capacity)),
            Err(error) => Err(Error::new(error)),
        };
        match memory {
            Ok(memory) => Ok(Opened { memory, refused: None, unwritable }),
            Err(error) if self.is_required => Err(error.context(self.name())),
            Err(error) => {
                let aside = file.set_aside().with_context(|| self.name())?;
                let refused = Some(Refused { reason: tollway_core::explained(&*error), aside });
                Ok(Opened { memory: MemoryStore::new(capacity), refused, unwritable })
            }
        }
    }

    fn name(&self) -> String {
        format!("{} {}", self.flag, self.path.display())
    }
}

/// A clock for the store that does not start before its states.
pub(crate) fn clock(memory: &MemoryStore) -> SystemClock {
    memory.written_at().map_or_else(SystemClock::new, SystemClock::not_before)
}

fn is_missing(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn not_from_the_future(memory: MemoryStore) -> Result<MemoryStore> {
    let ahead = memory.written_at().unwrap_or(Timestamp::MIN).since(SystemClock::new().now());
    if ahead <= AHEAD_MAX {
        return Ok(memory);
    }
    let hours = ahead.as_secs() / 3_600;
    Err(anyhow!("it was written {hours} h ahead of the system's clock: one of the clocks is wrong"))
}
