//! Text as one word of a shell's command line: what is printed can be pasted.

/// `text`, in quotes if a shell would read something else in it.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) && !text.starts_with(['-', '=']) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_where_a_shell_would_change_them() {
        for (text, word) in [
            ("http://127.0.0.1:80/a", "http://127.0.0.1:80/a"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("http://h/?q=1&r=2", "'http://h/?q=1&r=2'"),
            ("$HOME", "'$HOME'"),
            ("http://[::1]:80/", "'http://[::1]:80/'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}
