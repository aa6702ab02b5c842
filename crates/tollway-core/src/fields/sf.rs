//! A reader of RFC 9651 Structured Fields: Lists and Dictionaries of Items.
//!
//! It accepts what the RFC accepts and fails on the whole field otherwise, because a field that is
//! half understood is worse than one ignored. Ranges and types of particular members are the
//! caller's. Writing is not here: the emitters need two shapes, which
//! [`Dialect`](super::Dialect) writes directly.
//!
//! ```text
//! List       = member *( OWS "," OWS member )         member = ( item | "(" item* ")" ) params
//! Dictionary = key [ "=" member ] *( OWS "," OWS … )  params = *( ";" key [ "=" bare ] )
//! ```

use alloc::string::String;
use alloc::vec::Vec;

/// A value without parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bare {
    /// An Integer of at most 15 digits.
    Integer(i64),
    /// A Decimal, in thousandths.
    Decimal(i64),
    /// A String, unescaped.
    String(String),
    /// A Token.
    Token(String),
    /// A Byte Sequence, decoded. Compare these and not the text: pad bits may differ.
    Bytes(Vec<u8>),
    /// A Boolean.
    Boolean(bool),
    /// A Date, in seconds since the Unix epoch.
    Date(i64),
    /// A Display String, decoded.
    Display(String),
}

/// Parameters in order of first appearance; a repeated key keeps its place and its last value.
pub type Params = Vec<(String, Bare)>;

/// A member of a List or the value of a Dictionary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// A value with its parameters.
    Item(Bare, Params),
    /// A parenthesised list of items, with parameters of its own.
    Inner(Vec<(Bare, Params)>, Params),
}

/// Reads a List; `None` if the text is not one.
///
/// ```
/// use tollway_core::fields::sf::{Bare, Member, list};
/// let members = list(r#""user";r=50"#).expect("well formed");
/// let params = vec![("r".to_owned(), Bare::Integer(50))];
/// assert_eq!(members, [Member::Item(Bare::String("user".to_owned()), params)]);
/// assert_eq!(list("1,"), None);
/// ```
pub fn list(text: &str) -> Option<Vec<Member>> {
    let mut cursor = Cursor::new(text);
    let mut members = Vec::new();
    cursor.skip_spaces();
    while !cursor.rest.is_empty() {
        members.push(cursor.member()?);
        if !cursor.next_member()? {
            break;
        }
    }
    Some(members)
}

/// Reads a Dictionary; `None` if the text is not one. A repeated key keeps its last value.
pub fn dictionary(text: &str) -> Option<Vec<(String, Member)>> {
    let mut cursor = Cursor::new(text);
    let mut entries = Vec::new();
    cursor.skip_spaces();
    while !cursor.rest.is_empty() {
        let key = cursor.key()?;
        let value = if cursor.take(b'=') {
            cursor.member()?
        } else {
            Member::Item(Bare::Boolean(true), cursor.params()?)
        };
        put(&mut entries, key, value);
        if !cursor.next_member()? {
            break;
        }
    }
    Some(entries)
}

/// The value of a parameter.
pub fn param<'a>(params: &'a Params, key: &str) -> Option<&'a Bare> {
    params.iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn put<T>(entries: &mut Vec<(String, T)>, key: String, value: T) {
    match entries.iter_mut().find(|(name, _)| *name == key) {
        Some((_, old)) => *old = value,
        None => entries.push((key, value)),
    }
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.as_bytes() }
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn bump(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn take(&mut self, byte: u8) -> bool {
        let taken = self.peek() == Some(byte);
        if taken {
            self.rest = &self.rest[1..];
        }
        taken
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&byte| !accept(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn skip_spaces(&mut self) {
        self.take_while(|byte| byte == b' ');
    }

    /// Moves past the comma to the next member; `Some(false)` at the end of the field.
    ///
    /// Trailing white space is allowed, a trailing comma is not.
    fn next_member(&mut self) -> Option<bool> {
        self.take_while(is_ows);
        if self.rest.is_empty() {
            return Some(false);
        }
        if !self.take(b',') {
            return None;
        }
        self.take_while(is_ows);
        (!self.rest.is_empty()).then_some(true)
    }

    fn member(&mut self) -> Option<Member> {
        if self.take(b'(') {
            return self.inner_list();
        }
        Some(Member::Item(self.bare()?, self.params()?))
    }

    fn inner_list(&mut self) -> Option<Member> {
        let mut items = Vec::new();
        loop {
            self.skip_spaces();
            if self.take(b')') {
                return Some(Member::Inner(items, self.params()?));
            }
            items.push((self.bare()?, self.params()?));
            if !matches!(self.peek()?, b' ' | b')') {
                return None;
            }
        }
    }

    fn params(&mut self) -> Option<Params> {
        let mut params = Params::new();
        while self.take(b';') {
            self.skip_spaces();
            let key = self.key()?;
            let value = if self.take(b'=') { self.bare()? } else { Bare::Boolean(true) };
            put(&mut params, key, value);
        }
        Some(params)
    }

    fn key(&mut self) -> Option<String> {
        let first = self.peek()?;
        if !first.is_ascii_lowercase() && first != b'*' {
            return None;
        }
        let accept = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        };
        Some(ascii(self.take_while(accept)))
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                Some(Bare::Token(ascii(self.take_while(is_token_byte))))
            }
            b':' => self.bytes(),
            b'?' => self.boolean(),
            b'@' => self.date(),
            b'%' => self.display(),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Bare> {
        let sign = if self.take(b'-') { -1 } else { 1 };
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        if !self.take(b'.') {
            return Some(Bare::Integer(sign * decimal_value(whole, 15)?));
        }
        let whole = decimal_value(whole, 12)?;
        let fraction = self.take_while(|byte| byte.is_ascii_digit());
        let scale = [1, 100, 10, 1].get(fraction.len())?;
        Some(Bare::Decimal(sign * (whole * 1000 + decimal_value(fraction, 3)? * scale)))
    }

    fn string(&mut self) -> Option<Bare> {
        let mut text = String::new();
        self.bump();
        loop {
            match self.bump()? {
                b'"' => return Some(Bare::String(text)),
                b'\\' => match self.bump()? {
                    escaped @ (b'"' | b'\\') => text.push(char::from(escaped)),
                    _ => return None,
                },
                byte @ b' '..=b'~' => text.push(char::from(byte)),
                _ => return None,
            }
        }
    }

    fn bytes(&mut self) -> Option<Bare> {
        self.bump();
        let encoded = self.take_while(|byte| byte != b':');
        self.take(b':').then_some(())?;
        base64(encoded).map(Bare::Bytes)
    }

    fn boolean(&mut self) -> Option<Bare> {
        self.bump();
        match self.bump()? {
            b'0' => Some(Bare::Boolean(false)),
            b'1' => Some(Bare::Boolean(true)),
            _ => None,
        }
    }

    fn date(&mut self) -> Option<Bare> {
        self.bump();
        match self.number()? {
            Bare::Integer(seconds) => Some(Bare::Date(seconds)),
            _ => None,
        }
    }

    fn display(&mut self) -> Option<Bare> {
        let mut bytes = Vec::new();
        self.bump();
        self.take(b'"').then_some(())?;
        loop {
            match self.bump()? {
                b'"' => return String::from_utf8(bytes).ok().map(Bare::Display),
                b'%' => bytes.push(lower_hex(self.bump()?)? << 4 | lower_hex(self.bump()?)?),
                byte @ b' '..=b'~' => bytes.push(byte),
                _ => return None,
            }
        }
    }
}

fn is_ows(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

fn ascii(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// The value of one digit or more, at most `digits_max`.
fn decimal_value(digits: &[u8], digits_max: usize) -> Option<i64> {
    if digits.is_empty() || digits.len() > digits_max {
        return None;
    }
    Some(digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

fn lower_hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// Decodes base64; `None` if it is none. Missing padding and non-zero pad bits pass, as the RFC
/// asks of readers (the draft's own examples have such bits).
pub fn base64(encoded: &[u8]) -> Option<Vec<u8>> {
    let end = encoded.iter().position(|&byte| byte == b'=').unwrap_or(encoded.len());
    let (symbols, padding) = encoded.split_at(end);
    let padding_max = (4 - symbols.len() % 4) % 4;
    let is_padding = padding.len() <= padding_max && padding.iter().all(|&byte| byte == b'=');
    if symbols.len() % 4 == 1 || !is_padding {
        return None;
    }
    let mut decoded = Vec::with_capacity(symbols.len() * 3 / 4);
    for chunk in symbols.chunks(4) {
        let mut bits = 0u32;
        for (index, &symbol) in chunk.iter().enumerate() {
            bits |= u32::from(base64_value(symbol)?) << (18 - 6 * index);
        }
        decoded.extend(&bits.to_be_bytes()[1..chunk.len()]);
    }
    Some(decoded)
}

fn base64_value(symbol: u8) -> Option<u8> {
    match symbol {
        b'A'..=b'Z' => Some(symbol - b'A'),
        b'a'..=b'z' => Some(symbol - b'a' + 26),
        b'0'..=b'9' => Some(symbol - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
