//! How a file is opened: where it is, how it commits, what is set aside beside it.

use std::fmt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, StorageBackend};

use crate::error::Error;
use crate::reserve::{Reserve, ReserveFile};

/// How a file is opened.
pub struct FileOptions {
    storage: Storage,
    two_phase: bool,
    cache_bytes: usize,
    journal_bytes: usize,
    reserve: Option<Box<dyn Reserve>>,
}

/// Opens a database on a storage that the caller makes.
type Open = dyn Fn(&Builder) -> Result<Database, redb::Error> + Send;

enum Storage {
    Path(PathBuf),
    Made(Box<Open>),
}

impl FileOptions {
    /// The file at `path`, two-phase commits, 64 MiB of cache, a journal of 4 MiB, a reserve of 8
    /// MiB beside it: twice the journal, since what is folded is there twice until it is committed.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let options = Self {
            storage: Storage::Path(path.into()),
            two_phase: true,
            cache_bytes: 64 << 20,
            journal_bytes: 4 << 20,
            reserve: None,
        };
        options.reserve_bytes(8 << 20)
    }

    /// A storage that is made whenever the file is opened, at first and after a failure: for
    /// storages that fail on purpose.
    pub fn on<S: StorageBackend>(make: impl Fn() -> std::io::Result<S> + Send + 'static) -> Self {
        let open = move |builder: &Builder| Ok(builder.create_with_backend(make()?)?);
        Self { storage: Storage::Made(Box::new(open)), reserve: None, ..Self::at("") }
    }

    /// How many bytes are set aside in `PATH.reserve`, for the day on which the disk is full; 0 for
    /// none. Has no meaning for a storage that is not a file.
    #[must_use]
    pub fn reserve_bytes(self, bytes: u64) -> Self {
        let Storage::Path(path) = &self.storage else { return self };
        let mut beside = path.as_os_str().to_owned();
        beside.push(".reserve");
        let file = (bytes > 0).then(|| ReserveFile { path: beside.into(), bytes });
        Self { reserve: file.map(|file| Box::new(file) as _), ..self }
    }

    /// Space that is set aside in a way of the caller's.
    #[must_use]
    pub fn reserve(self, reserve: impl Reserve + 'static) -> Self {
        Self { reserve: Some(Box::new(reserve)), ..self }
    }

    /// Whether a commit is made in two phases, with a sync of its own for the page that says which
    /// commit counts. Without, one sync suffices and a checksum tells after a crash.
    #[must_use]
    pub fn two_phase(self, two_phase: bool) -> Self {
        Self { two_phase, ..self }
    }

    /// How many bytes of the file are kept in memory.
    #[must_use]
    pub fn cache_bytes(self, cache_bytes: usize) -> Self {
        Self { cache_bytes, ..self }
    }

    /// How many bytes of changes are gathered, in the file and in memory, before they are sorted
    /// into tables. What comes and goes in between costs no more than its share of a commit.
    #[must_use]
    pub fn journal_bytes(self, journal_bytes: usize) -> Self {
        Self { journal_bytes, ..self }
    }

    /// Whether commits are made in two phases.
    pub const fn is_two_phase(&self) -> bool {
        self.two_phase
    }

    /// The bound of the journal; see [`Self::journal_bytes`].
    pub const fn journal_bytes_max(&self) -> usize {
        self.journal_bytes
    }

    /// The space that is to be set aside, for [`Space::new`](crate::Space::new).
    pub fn take_reserve(&mut self) -> Option<Box<dyn Reserve>> {
        self.reserve.take()
    }

    /// The database that is there, made if need be.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or made.
    pub fn open(&self) -> Result<Database, Error> {
        let mut builder = Builder::new();
        builder.set_cache_size(self.cache_bytes);
        match &self.storage {
            Storage::Path(path) => {
                create_whole(&builder, path)?;
                sync_folder(path).map_err(redb::Error::Io).map_err(Error::of_database)?;
                builder.open(path).map_err(Error::of_database)
            }
            Storage::Made(open) => open(&builder).map_err(Error::of_database),
        }
    }
}

/// Makes the file if there is none. It gets its name when it is whole: a process that dies while it
/// makes one leaves nothing that the next would take for a damaged file.
fn create_whole(builder: &Builder, path: &Path) -> Result<(), Error> {
    if path.exists() {
        return Ok(());
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let io = |error| Error::of_database(redb::Error::Io(error));
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    // Rows are nobody else's to read.
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&unfinished);
    drop(builder.create_file(file.map_err(io)?).map_err(Error::of_database)?);
    std::fs::rename(&unfinished, path).map_err(io)
}

/// Makes the name of the file durable: after a power cut the file would be there without it, and
/// what was acknowledged would be gone with the name. Whenever it is opened, since the process that
/// gave it the name may have died before it could do this.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    std::fs::File::open(folder.unwrap_or_else(|| ".".as_ref()))?.sync_all()
}

impl fmt::Debug for FileOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.storage {
            Storage::Path(path) => Some(path),
            Storage::Made(_) => None,
        };
        f.debug_struct("FileOptions")
            .field("path", &path)
            .field("two_phase", &self.two_phase)
            .finish()
    }
}
