//! A call of a language model, read out of a request: which model, how much it may answer, and how
//! many tokens the request itself is.
//!
//! The body is read once, string by string: nothing of it is kept but the model's name. What is
//! not JSON, or nests deeper than the reader follows, is no call that a budget can be kept for.

use std::fmt;
use std::io::Read;

use bytes::Bytes;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// Characters of ASCII that are taken for one token; any other character is taken for one by
/// itself.
const ASCII_PER_TOKEN: u64 = 4;
/// An image, a sound or a file is taken for so many tokens, whatever its size.
const MEDIUM_TOKENS: u64 = 1_000;
/// The longest name of a model.
const MODEL_BYTES_MAX: usize = 256;

/// Which of an API's calls it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    Chat,
    Completion,
    Response,
    Embedding,
    Message,
}

/// A call of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) form: Form,
    pub(crate) model: String,
    /// At most so many tokens of output, over all choices.
    pub(crate) cap: Option<u64>,
    pub(crate) is_stream: bool,
    /// Whether the end of a stream of chat tells what was used.
    pub(crate) tells_usage: bool,
    /// Tokens of the request, estimated.
    pub(crate) input: u64,
}

/// Why a body is no call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoCall(pub(crate) String);

impl Form {
    /// The form of a request, and the model if its path names it: Azure's paths name a deployment.
    pub(crate) fn of(method: &str, target: &str) -> Option<(Self, Option<String>)> {
        if method != "POST" {
            return None;
        }
        let path = target.split('?').next().unwrap_or_default();
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let form = match *segments {
            [.., "chat", "completions"] => Self::Chat,
            [.., "completions"] => Self::Completion,
            [.., "responses"] => Self::Response,
            [.., "embeddings"] => Self::Embedding,
            [.., "messages"] => Self::Message,
            _ => return None,
        };
        let deployment = segments.iter().position(|segment| *segment == "deployments");
        let model = deployment.and_then(|index| segments.get(index + 1));
        Some((form, model.map(|model| (*model).to_owned())))
    }

    /// Whether the API is Anthropic's; the others are OpenAI's.
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Self::Message)
    }
}

impl Call {
    /// Reads a body that came in these pieces.
    ///
    /// # Errors
    ///
    /// If it is no JSON object, names no model, or says something twice.
    pub(crate) fn read(form: Form, model: Option<String>, body: &[Bytes]) -> Result<Self, NoCall> {
        let read: Result<Asked, _> = match body {
            [one] => serde_json::from_slice(one),
            pieces => serde_json::from_reader(Pieces { pieces, at: 0 }),
        };
        let asked = read.map_err(|error| NoCall(format!("the body is no call: {error}")))?;
        let model = model.or(asked.model).filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| NoCall("`model` is missing".to_owned()))?;
        if model.len() > MODEL_BYTES_MAX {
            return Err(NoCall(format!("`model` is longer than {MODEL_BYTES_MAX} bytes")));
        }
        let choices = asked.choices.unwrap_or(1).max(1);
        Ok(Self {
            form,
            model,
            cap: asked.cap.map(|cap| cap.saturating_mul(choices)),
            is_stream: asked.is_stream,
            tells_usage: asked.tells_usage,
            input: asked.text.tokens().max(1),
        })
    }
}

/// What is read of a body.
#[derive(Default)]
struct Asked {
    model: Option<String>,
    cap: Option<u64>,
    choices: Option<u64>,
    is_stream: bool,
    tells_usage: bool,
    text: Text,
}

/// Strings, counted.
#[derive(Default)]
struct Text {
    ascii: u64,
    others: u64,
    media: u64,
}

impl Text {
    const fn tokens(&self) -> u64 {
        self.ascii.div_ceil(ASCII_PER_TOKEN) + self.others + self.media * MEDIUM_TOKENS
    }

    fn add(&mut self, text: &str) {
        let others = text.chars().filter(|c| !c.is_ascii()).count() as u64;
        self.ascii += text.bytes().filter(u8::is_ascii).count() as u64;
        self.others += others;
    }
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AskedVisitor)
    }
}

struct AskedVisitor;

impl<'de> Visitor<'de> for AskedVisitor {
    type Value = Asked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked, A::Error> {
        let mut asked = Asked::default();
        let mut named = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            match &*name {
                "model" => asked.model = map.next_value::<Word>()?.0,
                "max_tokens" | "max_completion_tokens" | "max_output_tokens" => {
                    let cap = map.next_value::<Count>()?.0;
                    // Of two caps the larger may be the one that holds.
                    asked.cap = asked.cap.max(cap);
                }
                "n" => asked.choices = map.next_value::<Count>()?.0,
                "stream" => {
                    let value = map.next_value::<serde_json::Value>()?;
                    asked.is_stream = value.as_bool().unwrap_or_default();
                }
                "stream_options" => asked.tells_usage = map.next_value::<StreamOptions>()?.0,
                "messages" | "input" | "prompt" | "system" | "instructions" | "tools" => {
                    map.next_value_seed(Counted { text: &mut asked.text, is_medium: false })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            }
            // Which of two counts is for the upstream to say: what is not the same to all is none.
            if named.contains(&name) {
                return Err(serde::de::Error::custom(format!("`{name}` is there twice")));
            }
            named.push(name);
        }
        Ok(asked)
    }
}

/// Counts all strings of a value; those of a medium are one.
struct Counted<'t> {
    text: &'t mut Text,
    is_medium: bool,
}

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if self.is_medium || text.starts_with("data:") {
            self.text.media += 1;
        } else {
            self.text.add(text);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self { text, is_medium } = self;
        while seq.next_element_seed(Counted { text, is_medium })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let is_medium =
                matches!(&*name, "data" | "url" | "file_data" | "image_url" | "file_url");
            // A word of the API, no text.
            if matches!(&*name, "type" | "role" | "id" | "detail" | "media_type") {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            map.next_value_seed(Counted { text: self.text, is_medium })?;
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    /// A number is a token that the client made itself.
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.text.others += 1;
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.text.others += 1;
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A string, or nothing of use.
struct Word(Option<String>);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Self(value.as_str().map(str::to_owned)))
    }
}

/// A number of tokens, however it is written; what is below one or no number is none.
struct Count(Option<u64>);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        // A float that is no u64 is more than anybody answers: the cast ends at the largest.
        let count = value.as_u64().or_else(|| value.as_f64().map(|count| count as u64));
        Ok(Self(count.filter(|count| *count > 0)))
    }
}

struct StreamOptions(bool);

impl<'de> Deserialize<'de> for StreamOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Self(value["include_usage"].as_bool().unwrap_or_default()))
    }
}

/// Pieces of a body, read one after the other.
struct Pieces<'b> {
    pieces: &'b [Bytes],
    at: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while let Some((first, others)) = self.pieces.split_first() {
            if self.at < first.len() {
                let count = into.len().min(first.len() - self.at);
                into[..count].copy_from_slice(&first[self.at..self.at + count]);
                self.at += count;
                return Ok(count);
            }
            (self.pieces, self.at) = (others, 0);
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Call, NoCall> {
        let whole = Call::read(Form::Chat, None, &[Bytes::copy_from_slice(body.as_bytes())]);
        let pieces: Vec<Bytes> = body.as_bytes().chunks(3).map(Bytes::copy_from_slice).collect();
        let in_pieces = Call::read(Form::Chat, None, &pieces);
        assert_eq!(whole.is_ok(), in_pieces.is_ok());
        if let (Ok(whole), Ok(in_pieces)) = (&whole, &in_pieces) {
            assert_eq!(whole, in_pieces);
        }
        whole
    }

    #[test]
    fn a_call_is_read_wherever_its_fields_stand() {
        let call = read(
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"abcdefgh"},
                {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],
                "max_tokens":7,"n":2,"stream_options":{"include_usage":true},"model":"m","x":[{}]}"#,
        )
        .unwrap();
        assert_eq!((&*call.model, call.cap, call.tells_usage), ("m", Some(14), true));
        assert_eq!(call.input, 2 + 1_000);
        assert_eq!(read(r#"{"model":"m","input":"\u00e9\u4e2d"}"#).unwrap().input, 2);
        assert_eq!(read(r#"{"model":"m","input":[1,2,3]}"#).unwrap().input, 3);
    }

    #[test]
    fn caps_are_read_however_large_or_odd() {
        for (cap, read_as) in [
            ("9223372036854775808", Some(1 << 63)),
            ("1e30", Some(u64::MAX)),
            ("-1", None),
            ("0", None),
            ("null", None),
            ("\"7\"", None),
        ] {
            let call = read(&format!(r#"{{"model":"m","max_tokens":{cap}}}"#)).unwrap();
            assert_eq!(call.cap, read_as, "{cap}");
        }
        let both = read(r#"{"model":"m","max_tokens":9,"max_completion_tokens":5}"#).unwrap();
        assert_eq!(both.cap, Some(9));
    }

    #[test]
    fn what_is_no_call_is_refused() {
        let deep =
            format!(r#"{{"model":"m","input":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(257));
        for body in
            ["", "{", "[]", "7", r#"{"model":7}"#, r#"{"model":"a","model":"b"}"#, &deep, &long]
        {
            assert!(read(body).is_err(), "{}", &body[..body.len().min(40)]);
        }
    }

    #[test]
    fn the_path_says_which_call_it_is() {
        let of = |target: &str| Form::of("POST", target);
        assert_eq!(of("/v1/chat/completions?x=1"), Some((Form::Chat, None)));
        assert_eq!(of("/v1/messages"), Some((Form::Message, None)));
        assert_eq!(of("/v1/messages/count_tokens"), None);
        let azure = "/openai/deployments/mini/chat/completions?api-version=1";
        assert_eq!(of(azure), Some((Form::Chat, Some("mini".to_owned()))));
        assert_eq!(Form::of("GET", "/v1/responses"), None);
    }
}
