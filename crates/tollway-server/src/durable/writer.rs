//! The thread that owns the file of durable counts.
//!
//! ```text
//!   tasks that came meanwhile ──> rows, and usage + what came to it ──> one commit ──> callers
//!   a commit fails            ──> all callers are told, the ledger is thrown away
//!   the next task             ──> the file is opened anew, and the ledger is read from it
//! ```
//!
//! Usage is added up here and nowhere else: a row is read from the journal or its table when a
//! window is charged first since the last folding.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redb::Database;
use tokio::sync::oneshot;
use tollway_core::Timestamp;
use tollway_journal::{
    Error, ErrorKind, FileOptions, Gathered, Journal, Space, SpaceWords, Tables, contained,
};
use tracing::{error, info};

use super::ledger::{Changes, Ledger, UsageChange};
use super::rows::{
    CountFile, CountTable, UsageRow, read_entry, read_head, read_reservation, read_usage,
    write_head, write_usage,
};
use super::usage::{UsagePage, UsageQuery, page};
use super::{Books, Failure, Shared};

const WORDS: SpaceWords =
    SpaceWords { file: "file of durable counts", additions: "charges of durable policies" };
/// How often usage rows whose time is over are looked for, and how many are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SWEPT_ROWS: usize = 512;

/// What the thread is asked.
#[derive(Debug)]
pub(super) struct Task {
    /// Of which reading of the file the changes are: those of an earlier one are lost.
    pub(super) generation: u64,
    pub(super) changes: Changes,
    pub(super) now: Timestamp,
    pub(super) caller: Caller,
}

/// Who waits for it.
#[derive(Debug)]
pub(super) enum Caller {
    Nobody,
    /// Waits until the changes are on the disk.
    Waits(oneshot::Sender<Result<(), Failure>>),
    /// Asks what was used.
    Asks(UsageQuery, oneshot::Sender<Result<UsagePage, Failure>>),
}

impl Task {
    fn refuse(self, failure: &Failure) {
        // Nobody waits any more if this fails.
        match self.caller {
            Caller::Nobody => {}
            Caller::Waits(caller) => drop(caller.send(Err(failure.clone()))),
            Caller::Asks(_, caller) => drop(caller.send(Err(failure.clone()))),
        }
    }
}

/// An open file.
struct Open {
    database: Database,
    journal: Journal<CountFile>,
}

pub(super) struct Writer {
    options: FileOptions,
    open: Option<Open>,
    space: Space,
    shared: Arc<Shared>,
    swept_at: Option<Instant>,
    swept_up_to: String,
}

impl Writer {
    /// Opens the file and reads the ledger from it.
    pub(super) fn open(mut options: FileOptions, shared: Arc<Shared>) -> Result<Self, Error> {
        let mut space = Space::new(options.take_reserve(), WORDS);
        let (open, ledger) = load(&options, &shared).or_else(|error| {
            // A process that was killed on a full disk has left its reserve: it is there for this.
            if error.kind() != ErrorKind::NoSpace {
                return Err(error);
            }
            space.run_out(&error);
            load(&options, &shared)
        })?;
        space.look(true);
        let keys = ledger.len();
        info!(keys, "durable counts read");
        shared.books().put(ledger);
        let (swept_at, swept_up_to) = (None, String::new());
        let writer = Self { options, open: Some(open), space, shared, swept_at, swept_up_to };
        writer.tell_space();
        Ok(writer)
    }

    fn tell_space(&self) {
        self.shared.books().set_full(self.space.is_full());
    }

    /// Opens the file again after a failure.
    fn reopen(&mut self) -> Result<(), Failure> {
        // A ledger that is gone was changed by what never came here.
        if self.open.is_some() && self.shared.books().ledger.is_some() {
            return Ok(());
        }
        self.open = None;
        match load(&self.options, &self.shared) {
            Ok((open, ledger)) => {
                info!(keys = ledger.len(), "durable counts read again");
                self.shared.books().put(ledger);
                self.open = Some(open);
                Ok(())
            }
            Err(wrong) => Err(self.fail(&wrong)),
        }
    }

    /// Notes a failure, in which everything is lost that is not in the file.
    fn fail(&mut self, wrong: &Error) -> Failure {
        if wrong.kind() == ErrorKind::NoSpace {
            self.space.run_out(&wrong.told_of(WORDS.file));
        }
        self.tell_space();
        self.open = None;
        let failure = Failure::of(wrong, WORDS.file);
        error!(reason = %failure.reason, "durable counts cannot be kept");
        self.shared.books().fail(failure.clone());
        failure
    }

    /// Stores what the tasks changed.
    fn store(&mut self, tasks: &mut [Task]) -> Result<(), Error> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let two_phase = self.options.is_two_phase();
        let sweeps = self.swept_at.is_none_or(|at| at.elapsed() >= SWEEP_EVERY);
        let swept_up_to = std::mem::take(&mut self.swept_up_to);
        // Inside, so that a database that panics is closed as one that does.
        let (open, swept_up_to, changed) = contained(|| {
            let (mut changed, mut latest) = (put_changes(&mut open, tasks)?, Timestamp::MIN);
            latest = tasks.iter().map(|task| task.now).fold(latest, Timestamp::max);
            let mut up_to = swept_up_to;
            if sweeps {
                let (gone, last) = sweep(&mut open, &up_to, latest)?;
                (changed, up_to) = (changed || gone, last);
            }
            if changed {
                open.journal.put_named(CountTable::Head, 0, "", &write_head(latest));
                open.journal.commit(&open.database, two_phase).map_err(Error::uncertain)?;
            }
            Ok::<_, Error>((open, up_to, changed))
        })?;
        if sweeps {
            self.swept_at = Some(Instant::now());
        }
        self.swept_up_to = swept_up_to;
        self.open = Some(open);
        self.shared.books().commits += u64::from(changed);
        Ok(())
    }

    fn answer(&self, task: Task) {
        match task.caller {
            Caller::Nobody => {}
            Caller::Waits(caller) => drop(caller.send(Ok(()))),
            Caller::Asks(query, caller) => {
                let Some(open) = &self.open else { return };
                let found = contained(|| page(&open.database, &open.journal, &query));
                let found = found.map_err(|wrong| Failure::of(&wrong, WORDS.file));
                drop(caller.send(found));
            }
        }
    }
}

impl Gathered<Task> for Writer {
    fn commit(&mut self, tasks: Vec<Task>) {
        let was_full = self.space.is_full();
        self.space.look(false);
        if was_full != self.space.is_full() {
            self.tell_space();
        }
        if let Err(failure) = self.reopen() {
            return tasks.into_iter().for_each(|task| task.refuse(&failure));
        }
        let generation = self.shared.books().generation;
        let is_lost = |task: &Task| task.generation != generation && !task.changes.is_empty();
        let (lost, mut tasks): (Vec<_>, Vec<_>) = tasks.into_iter().partition(is_lost);
        let failure = Failure::lost();
        lost.into_iter().for_each(|task| task.refuse(&failure));
        match self.store(&mut tasks) {
            Ok(()) => tasks.into_iter().for_each(|task| self.answer(task)),
            Err(wrong) => {
                let failure = self.fail(&wrong);
                tasks.into_iter().for_each(|task| task.refuse(&failure));
            }
        }
    }

    fn close(&mut self) {
        if let Some(open) = &mut self.open {
            // Should it fail, the journal is there when the file is opened again.
            drop(open.journal.fold(&open.database, self.options.is_two_phase()));
        }
        self.space.close();
    }
}

/// Opens the file and reads what is in it: tables, and the journal's tail.
fn load(options: &FileOptions, shared: &Shared) -> Result<(Open, Ledger), Error> {
    contained(|| {
        let mut database = options.open()?;
        // A byte that flips in a page with the way to others would hide rows, which no sum of a row
        // tells: this looks at the sums of all pages, once.
        if !database.check_integrity().map_err(Error::of_database)? {
            return Err(Error::new(ErrorKind::Corrupt, "the {file} is damaged: a page is wrong"));
        }
        let (bytes_max, two_phase) = (options.journal_bytes_max(), options.is_two_phase());
        let journal = Journal::open(&database, bytes_max, two_phase)?;
        let mut ledger = Ledger::new(shared.bytes_max);
        let mut rows = Tables::<CountFile>::new(&database);
        let head = rows.get_named((CountTable::Head, 0, ""), read_head)?;
        ledger.restore_time(head.unwrap_or(Timestamp::MIN));
        rows.each_named_after((CountTable::States, 0, ""), |name, row| {
            ledger.restore(name, read_entry(name, row)?);
            Some(true)
        })?;
        rows.each_named_after((CountTable::Reservations, 0, ""), |name, row| {
            let (id, open) = read_reservation(name, row)?;
            ledger.restore_reservation(id, open);
            Some(true)
        })?;
        drop(rows);
        Ok((Open { database, journal }, ledger))
    })
}

/// Puts rows into the journal, the last of each name; whether there were any.
fn put_changes(open: &mut Open, tasks: &mut [Task]) -> Result<bool, Error> {
    let (mut rows, mut usage) = (BTreeMap::new(), BTreeMap::<String, Vec<UsageChange>>::new());
    for task in tasks {
        let Changes { rows: changed, usage: used } = std::mem::take(&mut task.changes);
        rows.extend(changed.into_iter().map(|(table, name, row)| ((table, name), row)));
        for change in used {
            usage.entry(change.name.clone()).or_default().push(change);
        }
    }
    let changed = !rows.is_empty() || !usage.is_empty();
    for ((table, name), row) in rows {
        match row {
            Some(row) => open.journal.put_named(table, 0, &name, &row),
            None => open.journal.remove_named(table, 0, &name),
        }
    }
    let mut tables = Tables::<CountFile>::new(&open.database);
    for (name, changes) in usage {
        let read = |row: &[u8]| read_usage(&name, row);
        let known = match open.journal.get_named(CountTable::Usage, 0, &name) {
            Some(row) => row.map(|row| read(row).ok_or_else(Error::damaged)).transpose()?,
            None => tables.get_named((CountTable::Usage, 0, &name), read)?,
        };
        let mut units = known.map_or(0, |row| row.units);
        // In their order: what is given back beyond what was used does not make later use free.
        for change in &changes {
            units = units.saturating_add(change.taken).saturating_sub(change.given_back);
        }
        let Some(UsageChange { period, .. }) = changes.last() else { continue };
        let row = UsageRow { end: period.end, kept_until: period.kept_until, units };
        if known.is_some() || units > 0 {
            open.journal.put_named(CountTable::Usage, 0, &name, &write_usage(&name, row));
        }
    }
    Ok(changed)
}

/// Removes usage that was kept for long enough, among the next rows; whether there was any, and
/// where to go on.
fn sweep(open: &mut Open, from: &str, now: Timestamp) -> Result<(bool, String), Error> {
    let (mut seen, mut last, mut over) = (0, String::new(), Vec::new());
    let mut tables = Tables::<CountFile>::new(&open.database);
    tables.each_named_after((CountTable::Usage, 0, from), |name, row| {
        if read_usage(name, row)?.kept_until <= now {
            over.push(name.to_owned());
        }
        seen += 1;
        name.clone_into(&mut last);
        Some(seen < SWEPT_ROWS)
    })?;
    drop(tables);
    // A row that was charged since the last folding is not over, whatever its table says.
    over.retain(|name| open.journal.get_named(CountTable::Usage, 0, name).is_none());
    over.iter().for_each(|name| open.journal.remove_named(CountTable::Usage, 0, name));
    Ok((!over.is_empty(), if seen < SWEPT_ROWS { String::new() } else { last }))
}

impl Books {
    fn put(&mut self, mut ledger: Ledger) {
        ledger.renew(self.policies.iter());
        self.ledger = Some(ledger);
        self.failure = None;
    }

    fn fail(&mut self, failure: Failure) {
        self.ledger = None;
        self.generation += 1;
        self.failed_commits += 1;
        // An outage that goes on began when it began.
        let since = self.failure.as_ref().map_or(failure.since, |before| before.since);
        self.failure = Some(Failure { since, ..failure });
    }
}
