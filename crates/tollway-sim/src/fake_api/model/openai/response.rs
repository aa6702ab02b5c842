//! The Responses API: one item of output, and events that tell how it grows.

use serde_json::{Value, json};

use super::{Generated, Said};

pub(in crate::fake_api::model) fn response(said: &Said<'_>) -> Generated {
    let done = ended(said);
    if !said.call.is_stream {
        return Generated::whole(&done, said.call.output());
    }
    let mut events = Events { answer: Generated::stream(), number: 0, item: said.id("msg_") };
    let opened = body(said, "in_progress", Vec::new());
    events.add("response.created", json!({"response": opened}), 0);
    events.add("response.in_progress", json!({"response": opened}), 0);
    let content = said.parts().concat();
    let is_tool = said.call.tool.is_some();
    let empty = item(said, "in_progress", None);
    events.add("response.output_item.added", json!({"item": empty}), 0);
    if !is_tool {
        events.add("response.content_part.added", json!({"part": part("")}), 0);
    }
    for token in said.parts() {
        let name = match is_tool {
            true => "response.function_call_arguments.delta",
            false => "response.output_text.delta",
        };
        events.add(name, json!({"delta": token, "logprobs": []}), 1);
    }
    if is_tool {
        let done = json!({"arguments": content});
        events.add("response.function_call_arguments.done", done, 0);
    } else {
        events.add("response.output_text.done", json!({"text": content, "logprobs": []}), 0);
        events.add("response.content_part.done", json!({"part": part(&content)}), 0);
    }
    let item = item(said, status(said), Some(&content));
    events.add("response.output_item.done", json!({"item": item}), 0);
    let name = if said.call.is_cut() { "response.incomplete" } else { "response.completed" };
    for _ in 0..said.told.times().max(1) {
        events.add(name, json!({"response": done}), 0);
    }
    events.answer
}

/// Events that are numbered and name the item that they are about.
struct Events {
    answer: Generated,
    number: u64,
    item: String,
}

impl Events {
    fn add(&mut self, name: &str, mut data: Value, tokens: u64) {
        data["type"] = name.into();
        data["sequence_number"] = self.number.into();
        if data.get("response").is_none() {
            data["output_index"] = 0.into();
            data["item_id"] = self.item.as_str().into();
            data["content_index"] = 0.into();
        }
        self.number += 1;
        self.answer.event(&data, tokens);
    }
}

/// The response when it has ended.
fn ended(said: &Said<'_>) -> Value {
    let item = item(said, status(said), Some(&said.parts().concat()));
    let mut body = body(said, status(said), vec![item]);
    let (input, output) = (said.call.input, said.call.output());
    if said.call.is_cut() {
        body["incomplete_details"] = json!({"reason": "max_output_tokens"});
    }
    if said.told.times() > 0 {
        body["usage"] = json!({
            "input_tokens": input, "output_tokens": output, "total_tokens": input + output,
            "input_tokens_details": {"cached_tokens": said.call.cached},
            "output_tokens_details": {"reasoning_tokens": 0},
        });
    }
    body
}

fn body(said: &Said<'_>, status: &str, output: Vec<Value>) -> Value {
    json!({
        "id": said.id("resp_"), "object": "response", "created_at": said.epoch, "status": status,
        "model": said.call.model, "error": null, "incomplete_details": null,
        "instructions": null, "metadata": {}, "parallel_tool_calls": true, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "output": output, "usage": null,
        "max_output_tokens": said.call.cap,
    })
}

/// The one item of output, without content while there is none.
fn item(said: &Said<'_>, status: &str, content: Option<&str>) -> Value {
    match &said.call.tool {
        Some(name) => json!({
            "id": said.id("msg_"), "type": "function_call", "status": status, "name": name,
            "call_id": said.id("call_"), "arguments": content.unwrap_or_default(),
        }),
        None => json!({
            "id": said.id("msg_"), "type": "message", "role": "assistant", "status": status,
            "content": content.map(part).into_iter().collect::<Vec<_>>(),
        }),
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn status(said: &Said<'_>) -> &'static str {
    if said.call.is_cut() { "incomplete" } else { "completed" }
}
