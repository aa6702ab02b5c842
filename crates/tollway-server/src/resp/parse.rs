//! Commands out of bytes: RESP arrays of bulk strings and inline lines, without copying.
//!
//! ```text
//!   *3\r\n $10\r\nTOLL.CHECK\r\n $3\r\napi\r\n $4\r\nada!\r\n      an array of bulk strings
//!   PING hello\r\n                                              an inline line
//! ```
//!
//! **Invariants.** Arguments borrow the input. A frame longer than [`Bounds::frame_bytes_max`] is
//! refused as soon as its declared length is known, before its bytes arrive, so a declared length
//! never makes anything grow. Lengths are read as Redis reads them: digits without sign or leading
//! zero. After an error the stream has no known frame boundary, so the connection must close.
//!
//! Deliberately absent: nested arrays, RESP3 types in requests (no client sends them), and escapes
//! inside quoted inline arguments (they could not be borrowed).

/// How much one command may ask of the parser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The longest command in bytes, framing included.
    pub frame_bytes_max: usize,
    /// The most arguments of one command.
    pub args_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { frame_bytes_max: 1 << 20, args_max: 1_024 }
    }
}

impl Bounds {
    /// For somebody who has shown no token where one is needed: enough to show it, as Redis has it.
    pub(crate) fn for_a_stranger(&self) -> Self {
        let frame_bytes_max = self.frame_bytes_max.min(STRANGER_BYTES_MAX);
        Self { frame_bytes_max, args_max: self.args_max.min(STRANGER_ARGS_MAX) }
    }
}

const STRANGER_BYTES_MAX: usize = 16 * 1024;
const STRANGER_ARGS_MAX: usize = 10;

/// What the bytes at the start of the input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A command, its arguments now in the list; none for an empty line or array.
    Command {
        /// Bytes that it took.
        used: usize,
    },
    /// The start of a command.
    Partial,
}

/// Why bytes are not RESP; the text is Redis's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    /// The count of an array is not a number, or too large.
    ArrayLength,
    /// The length of a bulk string is not a number, or too large.
    BulkLength,
    /// An array holds something other than a bulk string.
    ExpectedBulk(u8),
    /// A bulk string does not end where it said.
    BulkEnd,
    /// An inline line, or the line of a length, does not end.
    LineTooLong,
    /// A quote in an inline line is not closed.
    Quotes,
    /// A browser speaks HTTP.
    Http,
}

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Protocol error: ")?;
        match self {
            Self::ArrayLength => f.write_str("invalid multibulk length"),
            Self::BulkLength => f.write_str("invalid bulk length"),
            Self::ExpectedBulk(byte) => {
                write!(f, "expected '$', got '{}'", byte.escape_ascii())
            }
            Self::BulkEnd => f.write_str("expected CRLF after a bulk string"),
            Self::LineTooLong => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::Http => f.write_str("this is the port for RESP, not for HTTP"),
        }
    }
}

impl std::error::Error for ProtocolError {}

/// The longest line that is not a bulk string: an inline command or a length.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Reads the command at the start of `input` into `args`.
///
/// # Errors
///
/// If the bytes cannot become a command whatever follows.
pub(crate) fn parse<'a>(
    input: &'a [u8],
    bounds: &Bounds,
    args: &mut Vec<&'a [u8]>,
) -> Result<Frame, ProtocolError> {
    args.clear();
    match input.first() {
        None => Ok(Frame::Partial),
        Some(b'*') => parse_array(input, bounds, args),
        Some(_) => parse_inline(input, bounds, args),
    }
}

fn parse_array<'a>(
    input: &'a [u8],
    bounds: &Bounds,
    args: &mut Vec<&'a [u8]>,
) -> Result<Frame, ProtocolError> {
    let Some((count, mut at)) = length(input, 1, ProtocolError::ArrayLength)? else {
        return Ok(Frame::Partial);
    };
    let Ok(count) = usize::try_from(count) else { return Ok(Frame::Command { used: at }) };
    if count > bounds.args_max {
        return Err(ProtocolError::ArrayLength);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(Frame::Partial),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::ExpectedBulk(other)),
        }
        let Some((len, start)) = length(input, at + 1, ProtocolError::BulkLength)? else {
            return Ok(Frame::Partial);
        };
        let len = usize::try_from(len).map_err(|_| ProtocolError::BulkLength)?;
        let end = start.checked_add(len).ok_or(ProtocolError::BulkLength)?;
        if end >= bounds.frame_bytes_max {
            return Err(ProtocolError::BulkLength);
        }
        match input.get(end..end + 2) {
            None => return Ok(Frame::Partial),
            Some(b"\r\n") => args.push(&input[start..end]),
            Some(_) => return Err(ProtocolError::BulkEnd),
        }
        at = end + 2;
    }
    Ok(Frame::Command { used: at })
}

/// Reads a decimal up to CRLF from `at`: the number and where the next line starts.
fn length(
    input: &[u8],
    at: usize,
    error: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    // Most lengths have one or two digits: looking for them first saves a search for the line end.
    if let Some(&[digit @ b'0'..=b'9', b'\r', b'\n']) = input.get(at..at + 3) {
        return Ok(Some((i64::from(digit - b'0'), at + 3)));
    }
    if let Some(&[tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n']) = input.get(at..at + 4) {
        return Ok(Some((i64::from(tens - b'0') * 10 + i64::from(ones - b'0'), at + 4)));
    }
    let rest = &input[at..input.len().min(at + LENGTH_LINE_MAX)];
    let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
        return if rest.len() == LENGTH_LINE_MAX { Err(error) } else { Ok(None) };
    };
    let line = rest[..end].strip_suffix(b"\r").ok_or(error)?;
    let number = integer(line).ok_or(error)?;
    Ok(Some((number, at + end + 1)))
}

/// The longest text of an i64, with CRLF.
const LENGTH_LINE_MAX: usize = 22;

/// An integer as Redis reads it: no plus sign, no leading zeros, no spaces.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [] => return None,
        [b'0'] => return (!negative).then_some(0),
        [b'0', ..] => return None,
        _ => {}
    }
    let mut value = 0i64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        let digit = i64::from(digit - b'0');
        // Built downwards: the smallest i64 has no positive counterpart.
        value = value.checked_mul(10)?.checked_sub(digit)?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// A number of units: digits without sign or leading zeros.
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    let is_plain = text == b"0" || (!text.starts_with(b"0") && text.iter().all(u8::is_ascii_digit));
    is_plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

fn parse_inline<'a>(
    input: &'a [u8],
    bounds: &Bounds,
    args: &mut Vec<&'a [u8]>,
) -> Result<Frame, ProtocolError> {
    let line_max = LINE_BYTES_MAX.min(bounds.frame_bytes_max);
    let window = &input[..input.len().min(line_max)];
    let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
        return if window.len() == line_max {
            Err(ProtocolError::LineTooLong)
        } else {
            Ok(Frame::Partial)
        };
    };
    let line = window[..end].strip_suffix(b"\r").unwrap_or(&window[..end]);
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let (arg, after) = inline_argument(rest)?;
        if args.len() == bounds.args_max {
            return Err(ProtocolError::ArrayLength);
        }
        args.push(arg);
        rest = after.trim_ascii_start();
    }
    if args.first().is_some_and(|first| is_http(first)) {
        return Err(ProtocolError::Http);
    }
    Ok(Frame::Command { used: end + 1 })
}

/// Whether a line begins as a request of a browser, or as one of its header fields. A page can send
/// one to any port, with commands in its body: none of them may be obeyed.
fn is_http(first: &[u8]) -> bool {
    const WORDS: [&[u8]; 9] =
        [b"POST", b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"CONNECT", b"HOST:"];
    // Nor may those in a greeting of TLS, whose ticket a page can have chosen.
    let is_text = first.first().is_some_and(u8::is_ascii_graphic);
    !is_text || WORDS.iter().any(|word| first.eq_ignore_ascii_case(word))
}

fn inline_argument(text: &[u8]) -> Result<(&[u8], &[u8]), ProtocolError> {
    let quote = text[0];
    if quote != b'"' && quote != b'\'' {
        let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
        return Ok(text.split_at(end));
    }
    let inner = &text[1..];
    let end = inner.iter().position(|&byte| byte == quote).ok_or(ProtocolError::Quotes)?;
    let after = &inner[end + 1..];
    if after.first().is_some_and(|byte| !byte.is_ascii_whitespace()) {
        return Err(ProtocolError::Quotes);
    }
    Ok((&inner[..end], after))
}

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
