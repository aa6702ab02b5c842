//! A file as a tree that remembers its lines, whether it was TOML or YAML.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::line_starts::LineStarts;

/// The largest file that is read.
pub(super) const FILE_BYTES_MAX: usize = 8 << 20;

/// A value and the line it stands on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    /// The line, from 1.
    pub line: usize,
    /// The value.
    pub value: Value,
}

/// A value of either format.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Table(Vec<(String, Node)>),
}

/// Reads a file's text; YAML if its name ends so, TOML otherwise.
pub(super) fn parse(source: &str, text: &str) -> Result<Node, ConfigError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(error(source, 0, format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    if source.ends_with(".yaml") || source.ends_with(".yml") {
        parse_yaml(source, text)
    } else {
        parse_toml(source, text)
    }
}

/// JSON as a tree without lines.
pub(super) fn from_json(json: &serde_json::Value) -> Node {
    use serde_json::Value as Json;
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => Value::Integer(whole.into()),
            (_, Some(whole)) => Value::Integer(whole.into()),
            _ => Value::Float(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(values) => Value::List(values.iter().map(from_json).collect()),
        Json::Object(fields) => Value::Table(
            fields.iter().map(|(name, json)| (name.clone(), from_json(json))).collect(),
        ),
    };
    Node { line: 0, value }
}

fn error(source: &str, line: usize, problem: String) -> ConfigError {
    ConfigError { source: source.to_owned(), line, field: String::new(), problem }
}

fn parse_toml(source: &str, text: &str) -> Result<Node, ConfigError> {
    let lines = LineStarts::of(text);
    let table = DeTable::parse(text).map_err(|toml| {
        let at = toml.span().map_or(0, |span| span.start);
        error(source, lines.line(at), format!("not valid TOML: {}", toml.message()))
    })?;
    Ok(from_toml_table(table.get_ref(), table.span().start, &lines))
}

fn from_toml_table(table: &DeTable<'_>, at: usize, lines: &LineStarts) -> Node {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let key: &std::borrow::Cow<'_, str> = key.get_ref();
        (key.to_string(), from_toml(value, lines))
    };
    Node { line: lines.line(at), value: Value::Table(entries.into_iter().map(entry).collect()) }
}

fn from_toml(value: &toml::Spanned<DeValue<'_>>, lines: &LineStarts) -> Node {
    let at = value.span().start;
    let number = |digits: &str, radix| i128::from_str_radix(digits, radix).ok();
    let value = match value.get_ref() {
        DeValue::Table(table) => return from_toml_table(table, at, lines),
        DeValue::Array(array) => {
            Value::List(array.iter().map(|value| from_toml(value, lines)).collect())
        }
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(digits) => match number(digits.as_str(), digits.radix()) {
            Some(number) => Value::Integer(number),
            None => Value::Text(digits.to_string()),
        },
        DeValue::Float(digits) => match digits.as_str().parse() {
            Ok(number) => Value::Float(number),
            Err(_) => Value::Text(digits.as_str().to_owned()),
        },
        DeValue::Boolean(truth) => Value::Bool(*truth),
        DeValue::Datetime(moment) => Value::Text(moment.to_string()),
    };
    Node { line: lines.line(at), value }
}

fn parse_yaml(source: &str, text: &str) -> Result<Node, ConfigError> {
    serde_saphyr::from_str::<Node>(text).map_err(|yaml| {
        let line = yaml.location().map_or(0, |location| location.line() as usize);
        let message = yaml.without_snippet().to_string();
        let first = message.lines().next().unwrap_or_default();
        error(source, line, format!("not valid YAML: {first}"))
    })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line() as usize, value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry::<String, Node>()? {
            entries.push(entry);
        }
        Ok(Value::Table(entries))
    }
}
