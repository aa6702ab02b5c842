//! Patterns of paths: `POST /channels/*/messages`, `/webhooks/{}/{}`.
//!
//! A pattern is compared segment by segment. `*` and `{}` stand for any one segment, `{}` to be
//! captured, as is `{#}`, which is a secret and never shown; `text*` for a segment that begins with
//! the text; a last `**` for any rest.

use serde::Deserialize;

/// Longer paths are cut: what lies deeper is of no interest to a limit.
pub(super) const SEGMENTS_MAX: usize = 24;
/// Longer segments are parameters, whatever they look like.
pub(super) const SEGMENT_BYTES_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    Prefix(Box<str>),
    Any,
    Captured,
    Secret,
    Rest,
}

/// A pattern of a method and a path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Pattern {
    method: Option<Box<str>>,
    segments: Vec<Segment>,
}

impl TryFrom<String> for Pattern {
    type Error = &'static str;

    /// Reads `METHOD /path` or `/path`; the message says what would be right.
    fn try_from(text: String) -> Result<Self, &'static str> {
        let (method, path) = match text.split_once(' ') {
            Some((method, path)) => (Some(method), path),
            None => (None, &*text),
        };
        let path = path.strip_prefix('/').ok_or("a path pattern begins with a slash")?;
        let segments: Vec<_> =
            path.split('/').filter(|text| !text.is_empty()).map(Segment::parse).collect();
        let rest = segments.iter().position(|segment| *segment == Segment::Rest);
        if rest.is_some_and(|at| at + 1 != segments.len()) {
            return Err("`**` can only stand at the end");
        }
        let method = method.filter(|method| *method != "*").map(Into::into);
        Ok(Self { method, segments })
    }
}

impl Pattern {
    /// Whether the whole path is as described.
    pub(super) fn matches(&self, method: &str, path: &[&str]) -> bool {
        let open = self.segments.last() == Some(&Segment::Rest);
        self.method.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(method))
            && self.is_prefix_of(path)
            && (open || self.segments.len() == path.len())
    }

    /// Whether the path begins as described.
    pub(super) fn is_prefix_of(&self, path: &[&str]) -> bool {
        let segments = self.segments.strip_suffix(&[Segment::Rest]).unwrap_or(&self.segments);
        let fits = |(segment, text): (&Segment, &&str)| segment.fits(text);
        segments.len() <= path.len() && segments.iter().zip(path).all(fits)
    }

    /// How many segments it describes.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether the segment at `index` is to be captured.
    pub(super) fn captures(&self, index: usize) -> bool {
        matches!(self.segments.get(index), Some(Segment::Captured | Segment::Secret))
    }

    /// Whether the segment at `index` must not be shown.
    pub(super) fn hides(&self, index: usize) -> bool {
        self.segments.get(index) == Some(&Segment::Secret)
    }
}

impl Segment {
    fn parse(text: &str) -> Self {
        match text {
            "*" => Self::Any,
            "**" => Self::Rest,
            "{}" => Self::Captured,
            "{#}" => Self::Secret,
            _ => match text.strip_suffix('*') {
                Some(prefix) => Self::Prefix(prefix.into()),
                None => Self::Literal(text.into()),
            },
        }
    }

    fn fits(&self, text: &str) -> bool {
        match self {
            Self::Literal(wanted) => &**wanted == text,
            Self::Prefix(wanted) => text.starts_with(&**wanted),
            Self::Any | Self::Captured | Self::Secret | Self::Rest => true,
        }
    }
}

/// How a segment is known to be a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Id {
    /// Nothing but digits.
    Digits,
    /// 8-4-4-4-12 hexadecimal digits.
    Uuid,
    /// Eight or more hexadecimal digits, with a digit among them.
    Hex,
    /// Twenty or more letters, digits, `-` and `_`, with a digit among them.
    Opaque,
}

impl Id {
    pub(super) fn is(self, segment: &str) -> bool {
        let has_digit = || segment.bytes().any(|byte| byte.is_ascii_digit());
        let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match self {
            Self::Digits => segment.bytes().all(|byte| byte.is_ascii_digit()),
            Self::Uuid => {
                segment.len() == 36 && segment.split('-').map(str::len).eq([8, 4, 4, 4, 12])
            }
            Self::Hex => segment.len() >= 8 && hex(segment) && has_digit(),
            Self::Opaque => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
                segment.len() >= 20 && segment.bytes().all(plain) && has_digit()
            }
        }
    }
}
