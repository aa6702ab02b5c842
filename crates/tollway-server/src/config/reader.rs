//! Reading a tree field by field, with errors that say where and what.
//!
//! A mistake is noted and reading goes on, with a default in its place: nothing that was read is
//! used once there is a mistake. What cannot go on (a list that is none) gives an error to its
//! caller.

use std::cell::RefCell;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tollway_core::spelling::{is_slip, likely};
use tollway_core::{parse_duration, parse_size};

use super::error::{ConfigError, Finding};
use super::tree::{Node, Value};
use crate::config_line::ConfigLine;

/// A file that is read, and where its mistakes are noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    /// The file's name.
    pub name: &'a Arc<str>,
    /// The mistakes of all files.
    pub finding: &'a Finding,
    /// Whether files that the configuration names are looked at, too.
    pub looks_at_files: bool,
}

/// A place in a file: a value and the path that leads to it.
#[derive(Clone, Debug)]
pub(super) struct ConfigValue<'a> {
    source: Source<'a>,
    node: &'a Node,
    path: String,
}

/// A table being read. Every field that is asked for becomes known; [`Table::finish`] refuses
/// others.
#[derive(Debug)]
pub(super) struct Table<'a> {
    place: ConfigValue<'a>,
    entries: &'a [(String, Node)],
    known: RefCell<Vec<&'static str>>,
}

impl<'a> ConfigValue<'a> {
    /// The whole file.
    pub(super) const fn root(source: Source<'a>, node: &'a Node) -> Self {
        Self { source, node, path: String::new() }
    }

    /// An error about this place.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError {
            source: self.source.name.to_string(),
            line: self.node.line,
            field: self.path.clone(),
            problem: problem.into(),
        }
    }

    /// Where it stands, for whoever asks later which line it was.
    pub(super) fn place(&self) -> ConfigLine {
        ConfigLine::new(Arc::clone(self.source.name), self.node.line)
    }

    /// Notes a mistake at this place, and goes on.
    pub(super) fn note(&self, problem: impl Into<String>) {
        self.source.finding.note(self.wrong(problem));
    }

    fn expected(&self, what: &str) -> ConfigError {
        let found = match &self.node.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        };
        self.wrong(format!("expected {what}, found {found}"))
    }

    /// Text; a number or boolean stands for its own text, since YAML needs no quotes.
    pub(super) fn text(&self) -> Result<String, ConfigError> {
        match &self.node.value {
            Value::Text(text) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            Value::Float(number) => Ok(number.to_string()),
            Value::Bool(truth) => Ok(truth.to_string()),
            _ => Err(self.expected("text")),
        }
    }

    /// A boolean.
    pub(super) fn boolean(&self) -> Result<bool, ConfigError> {
        match self.node.value {
            Value::Bool(truth) => Ok(truth),
            _ => Err(self.expected("true or false")),
        }
    }

    /// A whole number of some type.
    pub(super) fn number<N: TryFrom<i128>>(&self) -> Result<N, ConfigError> {
        match self.node.value {
            Value::Integer(number) => {
                N::try_from(number).map_err(|_| self.wrong(format!("{number} is out of range")))
            }
            _ => Err(self.expected("a whole number")),
        }
    }

    /// A number of bytes: `268435456` where the field says that it counts bytes, or `256MiB`.
    pub(super) fn bytes<N: TryFrom<i128>>(&self) -> Result<N, ConfigError> {
        if matches!(self.node.value, Value::Integer(_)) {
            return self.number();
        }
        let text = self.text()?;
        let size = parse_size(&text).map_err(|error| self.wrong(error.to_string()))?;
        N::try_from(size.into()).map_err(|_| self.wrong(format!("{text} is out of range")))
    }

    /// A duration: `10s`, `1h30m`.
    pub(super) fn duration(&self) -> Result<Duration, ConfigError> {
        let text = self.text()?;
        parse_duration(&text)
            .map_err(|error| self.wrong(format!("{error}; expected for example 10s or 1h30m")))
    }

    /// Anything that reads from text.
    pub(super) fn parsed<T>(&self) -> Result<T, ConfigError>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        self.text()?.parse().map_err(|error: T::Err| self.wrong(error.to_string()))
    }

    /// A list.
    pub(super) fn list(&self) -> Result<Vec<Self>, ConfigError> {
        let Value::List(nodes) = &self.node.value else { return Err(self.expected("a list")) };
        let place = |(index, node)| Self {
            source: self.source,
            node,
            path: format!("{}[{index}]", self.path),
        };
        Ok(nodes.iter().enumerate().map(place).collect())
    }

    /// Notes what is wrong with this place, and goes on.
    pub(super) fn tell<T>(&self, result: Result<T, ConfigError>) -> Option<T> {
        self.source.finding.tell(result)
    }

    /// What each place of a list reads as. Those that do not are noted, each of them, and left out.
    pub(super) fn all<T>(
        &self,
        read: impl Fn(&Self) -> Result<T, ConfigError>,
    ) -> Result<Vec<T>, ConfigError> {
        Ok(self.list()?.iter().filter_map(|place| place.tell(read(place))).collect())
    }

    /// A list of texts.
    pub(super) fn texts(&self) -> Result<Vec<String>, ConfigError> {
        self.all(Self::text)
    }

    /// Whether files that the configuration names are looked at, too.
    pub(super) const fn looks_at_files(&self) -> bool {
        self.source.looks_at_files
    }

    /// The value as it is, whatever it is.
    pub(super) fn json(&self) -> serde_json::Value {
        json(self.node)
    }

    /// A table whose names are the operator's: each with its place.
    pub(super) fn entries(&self) -> Result<Vec<(&'a str, Self)>, ConfigError> {
        let table = self.table()?;
        Ok(table.entries.iter().map(|(name, node)| (&**name, table.at(name, node))).collect())
    }

    /// A table.
    pub(super) fn table(&self) -> Result<Table<'a>, ConfigError> {
        let entries: &'a [(String, Node)] = match &self.node.value {
            Value::Table(entries) => entries,
            Value::Null if self.path.is_empty() => &[],
            _ => return Err(self.expected("a table")),
        };
        Ok(Table { place: self.clone(), entries, known: RefCell::default() })
    }
}

impl<'a> Table<'a> {
    /// The field, if it is there and says something.
    pub(super) fn get(&self, name: &'static str) -> Option<ConfigValue<'a>> {
        self.knows(&[name]);
        let (_, node) = self.entries.iter().find(|(key, _)| key == name)?;
        (node.value != Value::Null).then(|| self.at(name, node))
    }

    /// The field, which must be there.
    pub(super) fn need(&self, name: &'static str) -> Result<ConfigValue<'a>, ConfigError> {
        if let Some(place) = self.get(name) {
            return Ok(place);
        }
        if let Some((_, node)) = self.entries.iter().find(|(key, _)| key == name) {
            return Err(self.at(name, node).wrong("must not be empty"));
        }
        // Most likely it is there and misspelt: then that line is the one to mend.
        let known = self.known.borrow();
        let astray =
            self.entries.iter().find(|(key, _)| !known.contains(&&**key) && is_slip(name, key));
        Err(match astray {
            Some((key, node)) => {
                self.at(key, node).wrong(format!("unknown field; did you mean {name}?"))
            }
            None => self.wrong(format!("{name} is missing")),
        })
    }

    /// Whether the field stands there, be it without a value.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(key, _)| key == name)
    }

    /// Takes fields for known that were not asked for, because what comes before them is wrong.
    pub(super) fn knows(&self, names: &[&'static str]) {
        let mut known = self.known.borrow_mut();
        for name in names {
            if !known.contains(name) {
                known.push(name);
            }
        }
    }

    /// The field as text.
    pub(super) fn text(&self, name: &'static str) -> Option<String> {
        self.get(name).and_then(|place| self.tell(place.text()))
    }

    /// The field as a boolean; false if it is not there.
    pub(super) fn flag(&self, name: &'static str) -> bool {
        self.get(name).and_then(|place| self.tell(place.boolean())).unwrap_or(false)
    }

    /// The places of a list; none if the field is not there.
    pub(super) fn each(&self, name: &'static str) -> Vec<ConfigValue<'a>> {
        self.get(name).and_then(|place| self.tell(place.list())).unwrap_or_default()
    }

    /// Replaces `value` by the field, if it is there and right.
    pub(super) fn set<T>(
        &self,
        name: &'static str,
        value: &mut T,
        read: impl FnOnce(&ConfigValue<'a>) -> Result<T, ConfigError>,
    ) {
        if let Some(read) = self.get(name).and_then(|place| self.tell(read(&place))) {
            *value = read;
        }
    }

    /// Notes what is wrong, and goes on.
    pub(super) fn tell<T>(&self, result: Result<T, ConfigError>) -> Option<T> {
        self.place.tell(result)
    }

    /// Notes a mistake of the table as a whole, and goes on.
    pub(super) fn note(&self, problem: impl Into<String>) {
        self.place.note(problem);
    }

    /// Where the table stands.
    pub(super) fn place(&self) -> ConfigLine {
        self.place.place()
    }

    /// Whether files that the configuration names are looked at, too.
    pub(super) const fn looks_at_files(&self) -> bool {
        self.place.looks_at_files()
    }

    /// An error about the table as a whole.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> ConfigError {
        self.place.wrong(problem)
    }

    /// Notes fields that nobody asked for.
    pub(super) fn finish(&self) {
        let known = self.known.borrow();
        for (name, node) in self.entries.iter().filter(|(key, _)| !known.contains(&&**key)) {
            let likely = likely(known.iter().copied(), name);
            let remedy = match likely {
                Some(likely) => format!("did you mean {likely}?"),
                None => format!("known are: {}", known.join(", ")),
            };
            self.at(name, node).note(format!("unknown field; {remedy}"));
        }
    }

    fn at(&self, name: &str, node: &'a Node) -> ConfigValue<'a> {
        let dot = if self.place.path.is_empty() { "" } else { "." };
        let path = format!("{}{dot}{name}", self.place.path);
        ConfigValue { source: self.place.source, node, path }
    }
}

fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(truth) => (*truth).into(),
        // Structures of protocol buffers know doubles alone.
        Value::Integer(number) => (*number as f64).into(),
        Value::Float(number) => (*number).into(),
        Value::Text(text) => text.clone().into(),
        Value::List(nodes) => nodes.iter().map(json).collect(),
        Value::Table(entries) => {
            entries.iter().map(|(key, node)| (key.clone(), json(node))).collect()
        }
    }
}
