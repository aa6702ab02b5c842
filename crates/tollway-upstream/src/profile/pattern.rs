//! Patterns of paths: `POST /channels/*/messages`, `/webhooks/{}/{}`.
//!
//! A pattern is compared segment by segment. `*` and `{}` stand for any one segment, `{}` to be
//! captured, as is `{#}`, which is a secret and never shown; `text*` for a segment that begins with the text; a last `**` for any rest.

/// Longer paths are cut: what lies deeper is of no interest to a limit.
pub(super) const SEGMENTS_MAX: usize = 24;
/// Longer segments are parameters, whatever they look like.
pub(super) const SEGMENT_BYTES_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Box<str>),
    Prefix(Box<str>),
    Any,
    Captured,
    Secret,
    Rest,
}

/// A pattern of a method and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    method: Option<Box<str>>,
    parts: Vec<Part>,
}

impl Pattern {
    /// Reads `METHOD /path` or `/path`; the message says what would be right.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (method, path) = match text.split_once(' ') {
            Some((method, path)) => (Some(method), path),
            None => (None, text),
        };
        let path = path.strip_prefix('/').ok_or("a path pattern begins with a slash")?;
        let parts: Vec<Part> = path.split('/').filter(|part| !part.is_empty()).map(part).collect();
        let rest = parts.iter().position(|part| *part == Part::Rest);
        if rest.is_some_and(|at| at + 1 != parts.len()) {
            return Err("`**` can only stand at the end");
        }
        let method = method.filter(|method| *method != "*").map(Into::into);
        Ok(Self { method, parts })
    }

    /// Whether the whole path is as described.
    pub(super) fn matches(&self, method: &str, path: &[&str]) -> bool {
        let open = self.parts.last() == Some(&Part::Rest);
        self.method.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(method))
            && self.is_prefix_of(path)
            && (open || self.parts.len() == path.len())
    }

    /// Whether the path begins as described.
    pub(super) fn is_prefix_of(&self, path: &[&str]) -> bool {
        let parts = self.parts.strip_suffix(&[Part::Rest]).unwrap_or(&self.parts);
        parts.len() <= path.len() && parts.iter().zip(path).all(|(part, text)| part.fits(text))
    }

    /// How many segments it describes.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether the segment at `index` is to be captured.
    pub(super) fn captures(&self, index: usize) -> bool {
        matches!(self.parts.get(index), Some(Part::Captured | Part::Secret))
    }

    /// Whether the segment at `index` must not be shown.
    pub(super) fn hides(&self, index: usize) -> bool {
        self.parts.get(index) == Some(&Part::Secret)
    }
}

impl Part {
    fn fits(&self, text: &str) -> bool {
        match self {
            Self::Literal(wanted) => &**wanted == text,
            Self::Prefix(wanted) => text.starts_with(&**wanted),
            Self::Any | Self::Captured | Self::Secret | Self::Rest => true,
        }
    }
}

fn part(text: &str) -> Part {
    match text {
        "*" => Part::Any,
        "**" => Part::Rest,
        "{}" => Part::Captured,
        "{#}" => Part::Secret,
        _ => match text.strip_suffix('*') {
            Some(prefix) => Part::Prefix(prefix.into()),
            None => Part::Literal(text.into()),
        },
    }
}

/// How a segment is known to be a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "digits" => Self::Digits,
            "uuid" => Self::Uuid,
            "hex" => Self::Hex,
            "opaque" => Self::Opaque,
            _ => return None,
        })
    }

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
