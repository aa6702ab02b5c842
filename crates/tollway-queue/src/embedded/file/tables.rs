//! The tables of a file of queues; what their rows hold is in `rows`.

use tollway_core::named_enum;
use tollway_journal::{Layout, NamedTable, NumberedTable, Written};

named_enum! {
    /// Tables whose rows are found by queue and job; a queue's own row is that of job 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Numbered {
        Jobs = "jobs",
        Moves = "moves",
        Dead = "dead",
        Done = "done",
        Queues = "queues",
    }
}

named_enum! {
    /// Tables whose rows are found by queue and name; what belongs to no queue is that of queue 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Named {
        Groups = "groups",
        Keys = "keys",
        Recurring = "recurring",
        Shared = "shared",
        Head = "head",
    }
}

/// A file of queues.
#[derive(Debug)]
pub(super) enum QueueFile {}

impl Layout for QueueFile {
    type Numbered = Numbered;
    type Named = Named;
    const FORMAT: u32 = super::rows::FORMAT;
}

tollway_journal::tables_by_name!(Numbered, Named);

impl NumberedTable for Numbered {
    /// The rows of a job and of its end are written once, and it moves only while there is such a
    /// job.
    fn written(self) -> Written<Self> {
        match self {
            Self::Jobs | Self::Done => Written::Once,
            Self::Moves => Written::Beside(Self::Jobs),
            Self::Dead | Self::Queues => Written::Often,
        }
    }
}

impl NamedTable for Named {}

/// A row of such a table, by queue and job.
pub(super) type RowKey = (Numbered, u32, u64);
