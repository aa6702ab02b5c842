//! Messages, as Anthropic's API answers them.

use serde_json::{Value, json};

use super::{Generated, NoCall, Said, UsageTold};

pub(super) fn invalid(wrong: &NoCall) -> Value {
    json!({"type": "error", "error": {"type": "invalid_request_error", "message": wrong.0}})
}

pub(super) fn count(said: &Said<'_>) -> Generated {
    Generated::whole(&json!({"input_tokens": said.call.input}), 0)
}

pub(super) fn message(said: &Said<'_>) -> Generated {
    if said.call.is_stream {
        return stream(said);
    }
    let mut message = opened(said);
    message["stop_reason"] = stop_reason(said).into();
    message["content"] = json!([block(said, &said.parts().concat())]);
    match said.told {
        UsageTold::Never => {
            message.as_object_mut().map(|message| message.remove("usage"));
        }
        _ => message["usage"]["output_tokens"] = said.call.output().into(),
    }
    Generated::whole(&message, said.call.output())
}

fn stream(said: &Said<'_>) -> Generated {
    let mut answer = Generated::stream();
    let mut start = json!({"type": "message_start", "message": opened(said)});
    if said.told == UsageTold::Never {
        start["message"].as_object_mut().map(|message| message.remove("usage"));
    }
    answer.event(&start, 0);
    let mut opening = block(said, "");
    if said.call.tool.is_some() {
        opening["input"] = json!({});
    }
    let block = json!({"type": "content_block_start", "index": 0, "content_block": opening});
    answer.event(&block, 0);
    answer.event(&json!({"type": "ping"}), 0);
    for part in said.parts() {
        let delta = match said.call.tool {
            Some(_) => json!({"type": "input_json_delta", "partial_json": part}),
            None => json!({"type": "text_delta", "text": part}),
        };
        answer.event(&json!({"type": "content_block_delta", "index": 0, "delta": delta}), 1);
    }
    answer.event(&json!({"type": "content_block_stop", "index": 0}), 0);
    let delta = json!({"stop_reason": stop_reason(said), "stop_sequence": null});
    let mut end = json!({"type": "message_delta", "delta": delta});
    if said.told != UsageTold::Never {
        end["usage"] = json!({"output_tokens": said.call.output()});
    }
    for _ in 0..said.told.times().max(1) {
        answer.event(&end, 0);
    }
    answer.event(&json!({"type": "message_stop"}), 0);
    answer
}

/// A message without content.
fn opened(said: &Said<'_>) -> Value {
    let call = said.call;
    json!({
        "id": said.id("msg_"), "type": "message", "role": "assistant", "model": call.model,
        "content": [], "stop_reason": null, "stop_sequence": null,
        "usage": {
            "input_tokens": call.input - call.cached, "output_tokens": 1,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": call.cached,
        },
    })
}

fn block(said: &Said<'_>, content: &str) -> Value {
    match &said.call.tool {
        Some(name) => {
            let input: Value = serde_json::from_str(content).unwrap_or_else(|_| json!({}));
            json!({"type": "tool_use", "id": said.id("toolu_"), "name": name, "input": input})
        }
        None => json!({"type": "text", "text": content}),
    }
}

fn stop_reason(said: &Said<'_>) -> &'static str {
    match said.call.tool {
        _ if said.call.is_cut() => "max_tokens",
        Some(_) => "tool_use",
        None => "end_turn",
    }
}
