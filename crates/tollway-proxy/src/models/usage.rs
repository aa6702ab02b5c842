//! What a call of a model used, as its provider tells it.

use serde_json::Value;

use crate::models::call::Form;

/// Tokens of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Read anew, or written into a cache.
    pub(crate) input: u64,
    /// Read from a cache.
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

impl Usage {
    pub(crate) const fn total(self) -> u64 {
        self.input.saturating_add(self.cached).saturating_add(self.output)
    }

    /// The `usage` object of an answer. Anthropic tells parts of it several times: what is not
    /// there stays as it was.
    pub(crate) fn learn(&mut self, form: Form, told: &Value) {
        let count = |path: &[&str]| {
            let found = path.iter().try_fold(told, |value, name| value.get(name));
            found.and_then(Value::as_u64)
        };
        if form.is_message() {
            let (fresh, written) =
                (count(&["input_tokens"]), count(&["cache_creation_input_tokens"]));
            if let Some(fresh) = fresh {
                self.input = fresh.saturating_add(written.unwrap_or_default());
            }
            self.cached = count(&["cache_read_input_tokens"]).unwrap_or(self.cached);
            self.output = count(&["output_tokens"]).unwrap_or(self.output);
            return;
        }
        let input = count(&["prompt_tokens"]).or_else(|| count(&["input_tokens"]));
        let cached = count(&["prompt_tokens_details", "cached_tokens"])
            .or_else(|| count(&["input_tokens_details", "cached_tokens"]));
        if let Some(input) = input {
            self.cached = cached.unwrap_or_default().min(input);
            self.input = input - self.cached;
        }
        let output = count(&["completion_tokens"]).or_else(|| count(&["output_tokens"]));
        self.output = output.unwrap_or(self.output);
    }

    /// What the end of a whole answer tells. A text of the model cannot look like it: quotation
    /// marks within a string are escaped.
    pub(crate) fn of_end(form: Form, end: &[u8]) -> Option<Self> {
        const NAME: &[u8] = b"\"usage\"";
        let at = end.windows(NAME.len()).rposition(|window| window == NAME)?;
        let rest = end[at + NAME.len()..].trim_ascii_start().strip_prefix(b":")?;
        let told = serde_json::Deserializer::from_slice(rest).into_iter::<Value>().next()?.ok()?;
        let mut usage = Self::default();
        usage.learn(form, told.as_object().map(|_| &told)?);
        Some(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_tells_it_in_its_own_words() {
        let of = |form, text: &str| Usage::of_end(form, text.as_bytes());
        let chat = r#"[0],"usage": {"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}},"x":1}"#;
        assert_eq!(of(Form::Chat, chat), Some(Usage { input: 6, cached: 3, output: 4 }));
        let response = r#"{"usage":{"input_tokens":9,"output_tokens":4}}"#;
        assert_eq!(of(Form::Response, response), Some(Usage { input: 9, cached: 0, output: 4 }));
        let message = r#"{"usage":{"input_tokens":6,"cache_creation_input_tokens":2,"cache_read_input_tokens":3,"output_tokens":4}}"#;
        assert_eq!(of(Form::Message, message), Some(Usage { input: 8, cached: 3, output: 4 }));
        let embedding = r#"{"usage":{"prompt_tokens":9,"total_tokens":9}}"#;
        assert_eq!(of(Form::Embedding, embedding), Some(Usage { input: 9, cached: 0, output: 0 }));
    }

    #[test]
    fn what_tells_nothing_or_lies_is_nothing() {
        for end in ["", "{}", r#""usage":null"#, r#""usage":{"#, r#"{"content":"\"usage\":{}"}"#] {
            assert_eq!(Usage::of_end(Form::Chat, end.as_bytes()), None, "{end}");
        }
        let odd = r#"{"usage":{"prompt_tokens":-1,"completion_tokens":1e99}}"#;
        assert_eq!(Usage::of_end(Form::Chat, odd.as_bytes()), Some(Usage::default()));
    }
}
