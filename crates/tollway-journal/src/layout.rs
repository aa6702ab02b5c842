//! What a file holds: which tables, how their rows are found, and how often a row is written.

use std::fmt::Debug;

use redb::TableDefinition;

/// What one kind of file holds.
pub trait Layout: Debug + 'static {
    /// Tables whose rows are found by two numbers; at most 16 of them.
    type Numbered: NumberedTable;
    /// Tables whose rows are found by a number and a name; at most 16 of them.
    type Named: NamedTable;
    /// The version of the rows. Each kind of file has versions of its own, so that none is taken
    /// for another.
    const FORMAT: u32;
}

/// One table of several; `ALL[one.index()] == one`, and indexes never change their meaning.
pub trait Table: Copy + Debug + Ord + Send + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// The name in the file.
    fn name(self) -> &'static str;

    /// The place among all of them.
    fn index(self) -> u8;
}

/// Says of an enumeration that has `ALL` and `name`, as [`tollway_core::named_enum`] makes them,
/// that its variants are tables.
#[macro_export]
macro_rules! tables_by_name {
    ($($tables:ty),+) => {
        $(impl $crate::Table for $tables {
            const ALL: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                Self::name(self)
            }

            fn index(self) -> u8 {
                self as u8
            }
        })+
    };
}

/// A table whose rows are found by two numbers.
pub trait NumberedTable: Table {
    /// How often a row is written.
    fn written(self) -> Written<Self>;

    /// The table in a database.
    fn table(self) -> TableDefinition<'static, (u32, u64), &'static [u8]> {
        TableDefinition::new(self.name())
    }
}

/// A table whose rows are found by a number and a name.
pub trait NamedTable: Table {
    /// The table in a database.
    fn table(self) -> TableDefinition<'static, (u32, &'static str), &'static [u8]> {
        TableDefinition::new(self.name())
    }
}

/// How often a row of a table is written. A row that came and went between two foldings, and that
/// no table can hold, is forgotten without a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written<T> {
    /// Once, and never again: a row that the journal does not hold is new.
    Once,
    /// Only while the row of the same numbers in that table is there: it is as new as that one.
    Beside(T),
    /// At any time.
    Often,
}
