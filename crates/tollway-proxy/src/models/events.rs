//! The events of a streamed answer: where each ends, how many tokens it brings, and how the stream
//! is ended in the provider's own way when nothing may follow.
//!
//! Before the usage is told, an event of text is one token, or as many as its characters make.

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::models::call::{Call, Form};
use crate::models::usage::Usage;

/// A longer event is passed on in parts, and is not read.
const EVENT_BYTES_MAX: usize = 1 << 20;
/// Text that is kept of a response, for its last event.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Characters that are taken for one token.
const CHARACTERS_PER_TOKEN: usize = 4;

/// Cuts a body into events, whatever pieces it comes in.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    held: BytesMut,
    /// So much of what is held has no end of an event in it.
    searched: usize,
}

impl Splitter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next whole event with the empty line after it. An event that is too long comes in parts.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let from = self.searched.saturating_sub(3);
        let end = end_of_event(&self.held[from..]).map(|end| from + end);
        let end = end.or_else(|| (self.held.len() > EVENT_BYTES_MAX).then_some(self.held.len()));
        self.searched = if end.is_some() { 0 } else { self.held.len() };
        end.map(|end| self.held.split_to(end).freeze())
    }

    /// What came after the last whole event.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.searched = 0;
        self.held.split().freeze()
    }
}

/// Where the first event ends: after an empty line, by any of the three ends of lines.
fn end_of_event(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        let first = at + found;
        let line_end = |at: usize| match (bytes.get(at), bytes.get(at + 1)) {
            (Some(b'\r'), Some(b'\n')) => Some(at + 2),
            (Some(b'\n' | b'\r'), _) => Some(at + 1),
            _ => None,
        };
        let next = line_end(first)?;
        if let Some(end) = line_end(next) {
            return Some(end);
        }
        at = next;
    }
    None
}

/// A streamed answer as far as it came.
#[derive(Debug)]
pub(crate) struct Reader {
    form: Form,
    tells_usage: bool,
    /// What was told, or counted until it is told.
    usage: Usage,
    is_told: bool,
    /// Tokens that were counted, as opposed to told.
    counted: u64,
    /// What the last events are made of: the first event of a chat, the response of its first
    /// event.
    opening: Option<Value>,
    text: String,
    choices: Vec<u64>,
    block: Option<u64>,
    sequence: u64,
    is_ended: bool,
}

/// What is read of an event, whatever API it is of.
#[derive(Deserialize)]
struct Event {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Value>,
    #[serde(default)]
    message: Option<Value>,
    #[serde(default)]
    response: Option<Value>,
    #[serde(default)]
    delta: Option<Value>,
    #[serde(default)]
    index: Option<u64>,
    #[serde(default)]
    sequence_number: Option<u64>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    #[serde(default)]
    delta: Option<Value>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    finish_reason: Option<String>,
}

impl Reader {
    /// A stream that answers `call`, which is expected to have this input.
    pub(crate) const fn new(call: &Call, input: u64) -> Self {
        Self {
            form: call.form,
            tells_usage: call.tells_usage,
            usage: Usage { input, cached: 0, output: 0 },
            is_told: false,
            counted: 0,
            opening: None,
            text: String::new(),
            choices: Vec::new(),
            block: None,
            sequence: 0,
            is_ended: false,
        }
    }

    /// What was used so far.
    pub(crate) const fn usage(&self) -> Usage {
        self.usage
    }

    /// Whether the provider told what was used.
    pub(crate) const fn is_told(&self) -> bool {
        self.is_told
    }

    /// Whether the answer came to its own end.
    pub(crate) const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Reads an event, or a part of one that is too long. Says whether it brings text, which costs.
    pub(crate) fn read(&mut self, event: &[u8]) -> bool {
        let before = self.counted;
        self.take_in(event);
        self.counted > before
    }

    /// Undoes the last event, which is not delivered.
    pub(crate) const fn take_back(&mut self, before: Usage) {
        self.usage = before;
    }

    fn take_in(&mut self, event: &[u8]) {
        let data = data_of(event);
        if data.is_empty() {
            return;
        }
        if &*data == b"[DONE]" {
            self.is_ended = true;
            return;
        }
        let Ok(event) = serde_json::from_slice::<Event>(&data) else {
            // Nobody knows what it is; it is text for all we know.
            self.count(data.len());
            return;
        };
        self.sequence = event.sequence_number.unwrap_or(self.sequence);
        match self.form {
            Form::Message => self.read_message(&event),
            Form::Response => self.read_response(event),
            _ => self.read_chat(event, &data),
        }
    }

    fn read_chat(&mut self, event: Event, data: &[u8]) {
        for choice in &event.choices {
            if !self.choices.contains(&choice.index) && self.choices.len() < 128 {
                self.choices.push(choice.index);
            }
            let written = choice.delta.as_ref().map_or(0, characters);
            self.count(written + choice.text.as_deref().map_or(0, str::len));
            if choice.finish_reason.is_some() {
                self.choices.retain(|index| *index != choice.index);
            }
        }
        if self.opening.is_none() {
            self.opening = serde_json::from_slice(data).ok();
        }
        if let Some(told) = event.usage.filter(Value::is_object) {
            self.told(&told);
        }
    }

    fn read_message(&mut self, event: &Event) {
        match &*event.kind {
            "message_start" => {
                if let Some(told) = event.message.as_ref().map(|message| &message["usage"]) {
                    self.told_in_part(told);
                }
            }
            "content_block_start" => self.block = event.index,
            "content_block_stop" => self.block = None,
            "content_block_delta" => {
                self.count(event.delta.as_ref().map_or(0, characters));
            }
            "message_delta" => {
                if let Some(told) = &event.usage {
                    self.told(told);
                }
            }
            "message_stop" => self.is_ended = true,
            _ => {}
        }
    }

    fn read_response(&mut self, event: Event) {
        if let Some(text) = event.delta.as_ref().and_then(Value::as_str) {
            self.count(text.len());
            if event.kind == "response.output_text.delta"
                && self.text.len() + text.len() <= TEXT_BYTES_MAX
            {
                self.text.push_str(text);
            }
        }
        let Some(response) = event.response else { return };
        if let Some(told) = response.get("usage").filter(|told| told.is_object()) {
            self.told(told);
        }
        let ends = ["response.completed", "response.incomplete", "response.failed"];
        self.is_ended |= ends.contains(&&*event.kind);
        self.opening.get_or_insert(response);
    }

    /// Counts an event with so much text.
    fn count(&mut self, characters: usize) {
        if characters == 0 {
            return;
        }
        self.counted += characters.div_ceil(CHARACTERS_PER_TOKEN).max(1) as u64;
        self.usage.output = self.usage.output.max(self.counted);
    }

    fn told(&mut self, told: &Value) {
        self.usage.learn(self.form, told);
        self.is_told |= told.is_object();
    }

    /// The beginning of a message tells its input; its output has only begun.
    fn told_in_part(&mut self, told: &Value) {
        let output = self.usage.output;
        self.usage.learn(self.form, told);
        self.usage.output = output;
    }

    /// What ends the answer as if its cap were reached.
    pub(crate) fn ending(&self) -> Bytes {
        let mut text = String::new();
        match self.form {
            Form::Message => self.end_message(&mut text),
            Form::Response => self.end_response(&mut text),
            _ => self.end_chat(&mut text),
        }
        text.into()
    }

    fn end_chat(&self, out: &mut String) {
        let mut chunk = self.opening.clone().unwrap_or_else(|| json!({}));
        chunk["choices"] = json!([]);
        let is_text = chunk["object"] == "text_completion";
        for index in &self.choices {
            let mut choice = json!({"index": index, "finish_reason": "length"});
            if is_text {
                choice["text"] = "".into();
            } else {
                choice["delta"] = json!({});
            }
            chunk["choices"] = json!([choice]);
            out.push_str(&format!("data: {chunk}\n\n"));
        }
        if self.tells_usage {
            let Usage { input, cached, output } = self.usage;
            chunk["choices"] = json!([]);
            chunk["usage"] = json!({
                "prompt_tokens": input + cached, "completion_tokens": output,
                "total_tokens": self.usage.total(),
                "prompt_tokens_details": {"cached_tokens": cached},
            });
            out.push_str(&format!("data: {chunk}\n\n"));
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn end_message(&self, out: &mut String) {
        if let Some(index) = self.block {
            event(out, &json!({"type": "content_block_stop", "index": index}));
        }
        let delta = json!({"stop_reason": "max_tokens", "stop_sequence": null});
        let usage = json!({"output_tokens": self.usage.output});
        event(out, &json!({"type": "message_delta", "delta": delta, "usage": usage}));
        event(out, &json!({"type": "message_stop"}));
    }

    fn end_response(&self, out: &mut String) {
        let mut response = self.opening.clone().unwrap_or_else(|| json!({}));
        let Usage { input, cached, output } = self.usage;
        response["status"] = "incomplete".into();
        response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        response["output"] = json!([{
            "id": "msg_0", "type": "message", "role": "assistant", "status": "incomplete",
            "content": [{"type": "output_text", "text": self.text, "annotations": []}],
        }]);
        response["usage"] = json!({
            "input_tokens": input + cached, "output_tokens": output,
            "total_tokens": self.usage.total(),
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens_details": {"reasoning_tokens": 0},
        });
        let number = self.sequence + 1;
        let last = json!({
            "type": "response.incomplete", "sequence_number": number, "response": response,
        });
        event(out, &last);
    }
}

fn event(out: &mut String, data: &Value) {
    let name = data["type"].as_str().unwrap_or_default();
    out.push_str(&format!("event: {name}\ndata: {data}\n\n"));
}

/// Characters of what a delta adds: text, thoughts, refusals, arguments of tools.
fn characters(delta: &Value) -> usize {
    match delta {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(characters).sum(),
        Value::Object(fields) => {
            let is_word = |name: &str| {
                matches!(name, "role" | "type" | "id" | "name" | "stop_reason" | "signature")
            };
            fields
                .iter()
                .filter(|(name, _)| !is_word(name))
                .map(|(_, value)| characters(value))
                .sum()
        }
        _ => 0,
    }
}

/// The data of an event: what its lines of data say, without the ends of the lines.
fn data_of(event: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    let mut data = lines.filter_map(|line| {
        let line = line.strip_prefix(b"data:")?;
        Some(line.strip_prefix(b" ").unwrap_or(line))
    });
    let Some(first) = data.next() else { return Default::default() };
    match data.next() {
        None => first.into(),
        Some(second) => {
            [first, second].into_iter().chain(data).collect::<Vec<_>>().join(&b'\n').into()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollway_core::Timestamp;
    use tollway_sim::fake_api::{Fault, Request, Spec, Upstream, UsageTold};

    use super::*;

    const APIS: [(&str, &str); 4] = [
        ("openai", "/v1/chat/completions"),
        ("openai", "/v1/completions"),
        ("openai", "/v1/responses"),
        ("anthropic", "/v1/messages"),
    ];

    /// The call and the stream that the fake API answers.
    fn streamed(api: &str, target: &str, told: UsageTold) -> (Call, String) {
        let body = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},
            "max_tokens":99,"n":1,"input":"12 tokens","prompt":"12 tokens",
            "messages":[{"role":"user","content":"12 tokens"}]}"#;
        let body = match target {
            "/v1/completions" => body.replace(r#""input":"12 tokens","#, ""),
            _ => body.to_owned(),
        };
        let (form, _) = Form::of("POST", target).unwrap();
        let call = Call::read(form, None, &[Bytes::from(body.clone())]).unwrap();
        let mut upstream = Upstream::new(Spec::named(api).unwrap());
        upstream.inject(Fault::Usage { count: 1, told });
        let request = Request { method: "POST", target, credential: None, body: body.as_bytes() };
        let answer = upstream.answer(&request, Timestamp::from_millis(1_700_000_000_000));
        assert_eq!(answer.status, 200, "{}", answer.body);
        (call, answer.body)
    }

    fn read_all(call: &Call, body: &str) -> Reader {
        let mut reader = Reader::new(call, 99);
        let mut splitter = Splitter::default();
        splitter.push(body.as_bytes());
        while let Some(event) = splitter.next() {
            reader.read(&event);
        }
        assert!(splitter.rest().is_empty());
        reader
    }

    proptest! {
        /// Whatever pieces a stream comes in, its events are the same and nothing is lost.
        #[test]
        fn a_stream_is_the_same_in_any_pieces(
            cuts in prop::collection::vec(1_usize..90, 1..60), crlf: bool
        ) {
            let (_, body) = streamed("anthropic", "/v1/messages", UsageTold::Once);
            let body = if crlf { body.replace('\n', "\r\n") } else { body };
            let mut whole = Splitter::default();
            whole.push(body.as_bytes());
            let events: Vec<Bytes> = std::iter::from_fn(|| whole.next()).collect();
            let mut splitter = Splitter::default();
            let (mut found, mut at) = (Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(body.len());
                splitter.push(&body.as_bytes()[at..end]);
                found.extend(std::iter::from_fn(|| splitter.next()));
                at = end;
                if at == body.len() {
                    break;
                }
            }
            // A line ends with \r before its \n has come: then the event ends a byte earlier.
            prop_assert_eq!([found.concat(), splitter.rest().to_vec()].concat(), body.as_bytes());
            let is_full = |event: &&Bytes| !data_of(event).is_empty();
            let read = |events: &[Bytes]| events.iter().filter(is_full).count();
            prop_assert_eq!(read(&found), read(&events));
        }

        /// No bytes make the reader panic, and none of them are lost.
        #[test]
        fn any_bytes_are_passed_on(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..40)
        ) {
            for (api, target) in APIS {
                let (call, _) = streamed(api, target, UsageTold::Once);
                let (mut reader, mut splitter) = (Reader::new(&call, 5), Splitter::default());
                let mut passed = Vec::new();
                for piece in &pieces {
                    splitter.push(piece);
                    while let Some(event) = splitter.next() {
                        reader.read(&event);
                        passed.extend_from_slice(&event);
                    }
                }
                passed.extend_from_slice(&splitter.rest());
                prop_assert_eq!(passed, pieces.concat());
                prop_assert!(!reader.ending().is_empty());
            }
        }
    }

    #[test]
    fn what_is_told_at_the_end_counts_even_if_it_is_told_twice() {
        for (api, target) in APIS {
            for told in [UsageTold::Once, UsageTold::Twice] {
                let (call, body) = streamed(api, target, told);
                let reader = read_all(&call, &body);
                assert_eq!(reader.usage().output, 12, "{target}");
                assert_ne!(reader.usage().input, 99, "{target}: as expected, not as told");
                assert!(reader.is_told() && reader.is_ended(), "{target}");
            }
        }
    }

    #[test]
    fn without_usage_tokens_are_counted() {
        for (api, target) in APIS {
            let (call, body) = streamed(api, target, UsageTold::Never);
            let reader = read_all(&call, &body);
            assert!(!reader.is_told(), "{target}");
            assert_eq!(reader.usage().input, 99, "{target}: as expected");
            assert!((12..=24).contains(&reader.usage().output), "{target}: {:?}", reader.usage());
        }
    }

    #[test]
    fn a_stream_that_is_cut_ends_as_its_api_ends_what_reached_its_cap() {
        for (api, target) in APIS {
            let (call, body) = streamed(api, target, UsageTold::Once);
            let mut splitter = Splitter::default();
            splitter.push(body.as_bytes());
            let mut reader = Reader::new(&call, 5);
            for event in std::iter::from_fn(|| splitter.next()).take(7) {
                reader.read(&event);
            }
            assert!(!reader.is_ended());
            let ending = String::from_utf8(reader.ending().to_vec()).unwrap();
            let word = if target == "/v1/responses" { "max_output_tokens" } else { "length" };
            let word = if api == "anthropic" { "max_tokens" } else { word };
            assert!(ending.contains(word), "{target}: {ending}");
            let mut splitter = Splitter::default();
            splitter.push(ending.as_bytes());
            while let Some(event) = splitter.next() {
                reader.read(&event);
            }
            assert!(reader.is_ended(), "{target}: {ending}");
        }
    }
}
