//! Quotas of one's own in a file beside the snapshot.
//!
//! A line is a change, `{"change":…}`. When the file has grown it is written anew: what is in
//! force, `{"entry":…}`, and then the last changes. Its first line names the format.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::CHANGES_MAX;
use super::checked_lines::CheckedLines;
use super::entry::{Change, Entry, Whom};
use super::in_force::OwnQuotas;

const FORMAT: u32 = 1;
/// A file that is shorter is left alone.
const REWRITTEN_FROM: u64 = 1 << 20;

/// The file.
#[derive(Debug)]
pub(super) struct QuotaFile {
    lines: CheckedLines,
    /// How long it was when it was last written anew.
    rewritten: u64,
}

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// What was said of whom.
    pub entries: BTreeMap<Whom, Entry>,
    /// The last changes, the latest last.
    pub changes: VecDeque<Change>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum QuotaLine {
    Format(u32),
    Entry { whom: Whom, entry: Entry },
    Change(Change),
}

/// A file that was opened, and what there is to warn of.
pub(super) struct Opened {
    pub file: QuotaFile,
    pub content: Content,
    pub warning: Option<String>,
}

impl QuotaFile {
    /// Opens the file at `path`, and makes it if it is not there.
    pub(super) fn open(path: &Path) -> io::Result<Opened> {
        let opened = CheckedLines::open(path)?;
        let mut content = Content::default();
        for (index, line) in opened.lines.iter().enumerate() {
            let line: QuotaLine = serde_json::from_slice(line).map_err(io::Error::from)?;
            content.add(index, line)?;
        }
        let warning = match (opened.aside, opened.torn) {
            (Some(aside), _) => Some(format!(
                "it is damaged: {} lines at its beginning count, all of it is in {}",
                opened.lines.len(),
                aside.display()
            )),
            (None, 0) => None,
            (None, torn) => Some(format!("a last line was never finished: {torn} bytes cut off")),
        };
        let rewritten = opened.file.length();
        let file = Self { lines: opened.file, rewritten };
        Ok(Opened { file, content, warning })
    }

    /// Adds a change. It is on the disk when this returns. The first one begins the file: a full
    /// disk does not keep a service from starting.
    pub(super) fn append(&mut self, change: &Change) -> io::Result<()> {
        if self.lines.length() == 0 {
            self.lines.append(&text(&QuotaLine::Format(FORMAT)))?;
        }
        self.lines.append(&text(&QuotaLine::Change(change.clone())))
    }

    /// Whether it is time to write it anew.
    pub(super) const fn has_grown(&self) -> bool {
        let (length, before) = (self.lines.length(), self.rewritten);
        length > REWRITTEN_FROM && length > before.saturating_mul(2)
    }

    /// Writes it anew: what is in force, and the last changes.
    pub(super) fn rewrite(
        &mut self,
        own: &OwnQuotas,
        changes: &VecDeque<Change>,
        now_ms: u64,
    ) -> io::Result<()> {
        let entries = own.all().filter_map(|own| {
            let entry = own.entry.at(now_ms)?;
            Some(QuotaLine::Entry { whom: own.whom.clone(), entry })
        });
        let changes = changes.iter().cloned().map(QuotaLine::Change);
        let lines = std::iter::once(QuotaLine::Format(FORMAT)).chain(entries).chain(changes);
        self.lines.rewrite(lines.map(|line| text(&line)))?;
        self.rewritten = self.lines.length();
        Ok(())
    }
}

impl Content {
    fn add(&mut self, index: usize, line: QuotaLine) -> io::Result<()> {
        let wrong = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        match (index, line) {
            (0, QuotaLine::Format(FORMAT)) => {}
            (0, QuotaLine::Format(other)) => {
                return wrong(format!("it has format {other}; this version knows {FORMAT}"));
            }
            (0, _) => return wrong("its first line does not name the format".to_owned()),
            (_, QuotaLine::Format(_)) => {}
            (_, QuotaLine::Entry { whom, entry }) => {
                self.entries.insert(whom, entry);
            }
            (_, QuotaLine::Change(change)) => self.apply(change),
        }
        Ok(())
    }

    fn apply(&mut self, change: Change) {
        match change.entry.clone() {
            Some(entry) => self.entries.insert(change.whom.clone(), entry),
            None => self.entries.remove(&change.whom),
        };
        note(&mut self.changes, change);
    }
}

/// Adds a change to those that are listed.
pub(super) fn note(changes: &mut VecDeque<Change>, change: Change) {
    changes.push_back(change);
    if changes.len() > CHANGES_MAX {
        changes.pop_front();
    }
}

fn text(line: &QuotaLine) -> Vec<u8> {
    serde_json::to_vec(line).expect("words and numbers are JSON")
}
