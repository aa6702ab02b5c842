//! Requests at given times, a line for each, as people cut them out of logs.
//!
//! ```text
//! # a comment
//! 1592171101900
//! 1592171101950 bob
//! 1592171102013 bob 3
//! ```

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};

use anyhow::{Context, Result, bail};
use tollway_core::{Cost, Key, Timestamp};

/// The longest line: a key of the greatest length, and some.
const LINE_BYTES_MAX: u64 = 128 << 10;
/// The last millisecond that a timestamp can tell.
const MILLIS_MAX: u64 = u64::MAX / 1_000_000;

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// When.
    pub(super) at: Timestamp,
    /// Who.
    pub(super) key: String,
    /// Units.
    pub(super) cost: Cost,
}

/// Requests as they stand in a file.
pub(super) struct Requests {
    name: String,
    lines: Box<dyn BufRead>,
    number: u64,
    /// Key and cost where a line gives none, and when the last request was.
    last: Request,
}

impl Requests {
    /// The requests in a file, `-` for standard input; `usual` says what a line leaves out.
    pub(super) fn open(name: &str, usual: Request) -> Result<Self> {
        let (name, lines): (_, Box<dyn BufRead>) = match name {
            "-" => ("standard input", Box::new(BufReader::new(io::stdin()))),
            name => {
                let file = File::open(name).with_context(|| format!("cannot open {name}"))?;
                (name, Box::new(BufReader::new(file)))
            }
        };
        Ok(Self { name: name.to_owned(), lines, number: 0, last: usual })
    }

    /// The next request; `None` after the last.
    pub(super) fn next_request(&mut self) -> Result<Option<Request>> {
        loop {
            let mut line = Vec::new();
            self.number += 1;
            let place = format!("{}, line {}", self.name, self.number);
            let mut within = (&mut self.lines).take(LINE_BYTES_MAX);
            if within.read_until(b'\n', &mut line).with_context(|| place.clone())? == 0 {
                return Ok(None);
            }
            let is_whole = line.ends_with(b"\n") || (line.len() as u64) < LINE_BYTES_MAX;
            let text = std::str::from_utf8(&line).ok().filter(|_| is_whole);
            let text = text.with_context(|| format!("{place}: no text, or too long"))?.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let request = self.request(text).context(place)?;
            self.last.at = request.at;
            return Ok(Some(request));
        }
    }

    fn request(&self, text: &str) -> Result<Request> {
        let mut words = text.split_whitespace();
        let millis = words.next().and_then(|word| word.parse().ok());
        let millis = millis.filter(|millis: &u64| *millis <= MILLIS_MAX);
        let millis = millis.context("expected milliseconds, then a key and a cost if need be")?;
        let at = Timestamp::from_millis(millis);
        if at < self.last.at {
            bail!("{millis} is before the time of the request above: sort the lines by time");
        }
        let key = words.next().unwrap_or(&self.last.key).to_owned();
        Key::new(&key).context("the key")?;
        let cost = match words.next() {
            None => self.last.cost,
            Some(word) => {
                word.parse().ok().and_then(Cost::new).context("the cost must be 1 or more")?
            }
        };
        if let Some(more) = words.next() {
            bail!("{more:?} stands behind milliseconds, key and cost");
        }
        Ok(Request { at, key, cost })
    }
}
