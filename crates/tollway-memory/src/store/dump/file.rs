//! Where a snapshot lies: replaced as a whole, set aside if it is refused, cleared of leftovers.
//!
//! ```text
//!   states                                the snapshot
//!   states.0123456789abcdef.unfinished    one being written; locked for as long as it is
//!   states.refused-1 ... -3               snapshots that could not be read, the newest first
//! ```

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::error::DumpError;
use crate::hash::Seed;

/// Refused files that are kept: enough to see what happened, and no more than three times the disk.
const REFUSED_MAX: usize = 3;
const UNFINISHED: &[u8] = b".unfinished";

/// The place of a snapshot file.
#[derive(Clone, Debug)]
pub struct DumpFile {
    path: PathBuf,
}

impl DumpFile {
    /// The place at `path`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned() }
    }

    /// Shows that a dump can be written there, and removes what dumps of killed processes have
    /// left. A dump that another process is writing right now is left alone.
    ///
    /// # Errors
    ///
    /// If the folder does not exist or nothing can be written there, or if there is something else
    /// than a file already.
    pub fn prepare(&self) -> Result<(), DumpError> {
        if fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            return Err(DumpError::not_a_file());
        }
        let mut trial = self.begin()?;
        trial.file.write_all(&[0; 64]).map_err(|error| self.unwritable(error))?;
        trial.file.sync_all().map_err(|error| self.unwritable(error))?;
        drop(trial);
        self.remove_leftovers();
        Ok(())
    }

    /// Renames a file that cannot be read, so that the next dump does not replace it; its new name.
    /// Three are kept, the newest as `.refused-1`.
    ///
    /// # Errors
    ///
    /// If it cannot be renamed.
    pub fn set_aside(&self) -> Result<PathBuf, DumpError> {
        for number in (1..REFUSED_MAX).rev() {
            // Nothing to move is the usual case.
            let _ = fs::rename(self.refused(number), self.refused(number + 1));
        }
        let aside = self.refused(1);
        let cannot = |error| DumpError::io("the file cannot be set aside".to_owned(), error);
        fs::rename(&self.path, &aside).map_err(cannot)?;
        Ok(aside)
    }

    /// Puts what `write` writes in the place of the file.
    pub(super) fn replace(
        &self,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), DumpError> {
        let mut unfinished = self.begin()?;
        let put = || -> io::Result<()> {
            write(&mut unfinished.file)?;
            unfinished.file.sync_all()?;
            fs::rename(&unfinished.path, &self.path)?;
            // Until then a crash of the machine may bring the old file back. Elsewhere a folder is
            // no file to be opened.
            #[cfg(unix)]
            File::open(self.folder())?.sync_all()?;
            Ok(())
        };
        put().map_err(|error| self.unwritable(error))
    }

    /// A file of its own, and a new one: what somebody else put there keeps its own mode, and two
    /// processes would mix.
    fn begin(&self) -> Result<Unfinished, DumpError> {
        let path = self.with_suffix(&format!(".{:016x}.unfinished", Seed::random().words[0]));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Keys of strangers are nobody else's business.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path);
        let file = file.map_err(|error| {
            let folder = self.folder().display();
            DumpError::io(format!("no file can be made in the folder {folder}"), error)
        })?;
        // Says that its writer lives. Where there are no locks, a start beside a dump fails that
        // dump, and the next one comes in a minute.
        let _ = is_lockable(&file);
        Ok(Unfinished { path, file })
    }

    /// What cannot be listed or removed costs disk, and nothing else.
    fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(self.folder()) else { return };
        for entry in entries.flatten().filter(|entry| self.is_unfinished(&entry.file_name())) {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) && is_abandoned(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Whether a name in the folder is that of a dump of this file: ours, and nobody else's.
    fn is_unfinished(&self, name: &OsStr) -> bool {
        let own = self.path.file_name().map_or(&b""[..], OsStr::as_encoded_bytes);
        let rest =
            name.as_encoded_bytes().strip_prefix(own).and_then(|rest| rest.strip_prefix(b"."));
        let number = rest.and_then(|rest| rest.strip_suffix(UNFINISHED));
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        number.is_some_and(|number| number.len() == 16 && number.iter().all(is_digit))
    }

    fn refused(&self, number: usize) -> PathBuf {
        self.with_suffix(&format!(".refused-{number}"))
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    }

    fn folder(&self) -> &Path {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new("."))
    }

    fn unwritable(&self, error: io::Error) -> DumpError {
        let path = self.path.display();
        DumpError::io(format!("the snapshot file {path} cannot be written"), error)
    }
}

/// A file that is being written; gone when dropped, unless it was renamed.
struct Unfinished {
    path: PathBuf,
    file: File,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether nobody is writing the file any more.
fn is_abandoned(path: &Path) -> bool {
    File::open(path).map_or(true, |file| is_lockable(&file))
}

/// Locks the file until it is closed; false if somebody else has locked it. Where there are no
/// locks, none is held.
fn is_lockable(file: &File) -> bool {
    #[cfg(unix)]
    {
        use std::os::fd::AsRawFd as _;
        // SAFETY: the descriptor is open for as long as the file is borrowed, and the call changes
        // nothing but its lock. The standard library has the same from Rust 1.89 on.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        locked == 0 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        true
    }
}
