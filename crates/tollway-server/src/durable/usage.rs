//! What keys used in their windows, page by page: only what is on the disk.

use std::collections::BTreeMap;

use redb::Database;
use tollway_core::Timestamp;
use tollway_journal::{Error, Journal, Tables};

use super::rows::{CountFile, CountTable, of_usage_name, read_usage, state_name};

/// The most rows of a page.
pub(crate) const PAGE_MAX: usize = 1_000;
/// The most rows that are looked at for a page: who filters hard gets short pages.
const LOOKED_AT_MAX: usize = 10_000;

/// Which rows are asked for.
#[derive(Clone, Debug)]
pub(crate) struct UsageQuery {
    pub(crate) policy: String,
    /// Of one key only.
    pub(crate) key: Option<Vec<u8>>,
    /// Of windows that end after this.
    pub(crate) from: Timestamp,
    /// Of windows that start before this.
    pub(crate) until: Timestamp,
    /// After the row of this name; see [`UsagePage::after`].
    pub(crate) after: Option<String>,
    pub(crate) most: usize,
    /// Rows that were kept for long enough are not told.
    pub(crate) now: Timestamp,
}

/// What one key used in one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) key: Vec<u8>,
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) units: u64,
}

/// Some rows, by key and window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsagePage {
    pub(crate) rows: Vec<Usage>,
    /// Where the next page goes on; `None` after the last.
    pub(crate) after: Option<String>,
}

/// Reads a page: rows of the journal before those of the tables.
pub(super) fn page(
    database: &Database,
    journal: &Journal<CountFile>,
    query: &UsageQuery,
) -> Result<UsagePage, Error> {
    let prefix = match &query.key {
        Some(key) => state_name(&query.policy, key) + "\0",
        None => query.policy.clone() + "\0",
    };
    let after = query.after.as_deref().filter(|after| after.starts_with(&prefix));
    let from = (CountTable::Usage, 0, after.unwrap_or(&prefix));
    let mut rows: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
    let mut is_all = true;
    Tables::<CountFile>::new(database).each_named_after(from, |name, row| {
        let goes_on = name.starts_with(&prefix) && rows.len() < LOOKED_AT_MAX;
        is_all = goes_on || !name.starts_with(&prefix);
        if goes_on {
            rows.insert(name.to_owned(), Some(row.to_vec()));
        }
        Some(goes_on)
    })?;
    // What the tables were not asked for is told with a later page, also if the journal has it.
    let end = rows.last_key_value().map(|(name, _)| name.clone()).filter(|_| !is_all);
    for (name, row) in journal.named_after(from) {
        if !name.starts_with(&prefix) || end.as_deref().is_some_and(|end| name > end) {
            break;
        }
        rows.insert(name.to_owned(), row.map(<[u8]>::to_vec));
    }
    let mut page = UsagePage::default();
    for (name, row) in &rows {
        if page.rows.len() == query.most {
            return Ok(page);
        }
        if let Some(usage) = row.as_ref().map(|row| told(name, row, query)).transpose()? {
            page.rows.extend(usage);
        }
        page.after = Some(name.clone());
    }
    if is_all {
        page.after = None;
    }
    Ok(page)
}

/// The row, if it is asked for.
fn told(name: &str, row: &[u8], query: &UsageQuery) -> Result<Option<Usage>, Error> {
    let row = read_usage(name, row).ok_or_else(Error::damaged)?;
    let (_, key, start) = of_usage_name(name).ok_or_else(Error::damaged)?;
    let is_asked = row.end > query.from && start < query.until && row.kept_until > query.now;
    Ok(is_asked.then_some(Usage { key, start, end: row.end, units: row.units }))
}
