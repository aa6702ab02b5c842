//! Fields of a JSON text, or of a form, that may have been cut off.
//!
//! A parser would refuse the first bytes of a long body, and those are all that is looked at. So a
//! field is found by its name in quotes and a colon. Text that only quotes such a field can deceive
//! this; all it can do then is to slow down whoever sent it.

/// Whether a field of that name is there.
pub(super) fn has_field(body: &[u8], name: &str) -> bool {
    value(body, name).is_some()
}

/// The number of the field of that name, as text.
pub(super) fn number<'b>(body: &'b [u8], name: &str) -> Option<&'b str> {
    let value = value(body, name)?;
    let end =
        value.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'.')).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).ok().filter(|text| !text.is_empty())
}

/// The value of the field of that name, if it is a plain text or number, in a JSON text or a form.
pub(super) fn text(body: &[u8], name: &str) -> Option<String> {
    let value = match value(body, name) {
        Some(value) => match value.strip_prefix(b"\"") {
            Some(quoted) => quoted.split(|byte| *byte == b'"').next()?,
            None => value.split(|byte| !byte.is_ascii_alphanumeric()).next()?,
        },
        None => {
            let mut fields = body.split(|byte| *byte == b'&');
            fields.find_map(|field| field.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?
        }
    };
    std::str::from_utf8(value).ok().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The whole number at the end of a path of names, wherever the first of them stands last.
pub(super) fn count_at(body: &[u8], path: &[String]) -> Option<u64> {
    let (first, rest) = path.split_first()?;
    let mut text = last_value(body, first)?;
    for name in rest {
        text = value(text.strip_prefix(b"{")?, name)?;
    }
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    std::str::from_utf8(&text[..end]).ok()?.parse().ok()
}

/// Whether the body contains the text.
pub(super) fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len().max(1)).any(|window| window == text.as_bytes())
}

/// What follows the last such name and its colon.
fn last_value<'b>(body: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let mut found = value(body, name)?;
    while let Some(later) = value(found, name) {
        found = later;
    }
    Some(found)
}

/// What follows the name and its colon.
fn value<'b>(body: &'b [u8], name: &str) -> Option<&'b [u8]> {
    let quoted = format!("\"{name}\"");
    let mut rest = body;
    loop {
        let at = rest.windows(quoted.len()).position(|window| window == quoted.as_bytes())?;
        rest = rest[at + quoted.len()..].trim_ascii_start();
        if let Some(value) = rest.strip_prefix(b":") {
            return Some(value.trim_ascii_start());
        }
    }
}
