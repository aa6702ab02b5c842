//! Chat completions, completions, responses and embeddings, as OpenAI's API answers them.

mod response;

use serde_json::{Value, json};

use super::{Generated, NoCall, Said};

pub(super) use response::response;

pub(super) fn invalid(wrong: &NoCall) -> Value {
    let error = json!({
        "message": wrong.0, "type": "invalid_request_error", "param": null, "code": null,
    });
    json!({ "error": error })
}

pub(super) fn embedding(said: &Said<'_>) -> Generated {
    let vector = [0.0, 0.5, 1.0];
    let one = |index| json!({"object": "embedding", "index": index, "embedding": vector});
    let data: Vec<Value> = (0..said.call.inputs).map(one).collect();
    let usage = json!({"prompt_tokens": said.call.input, "total_tokens": said.call.input});
    let mut body = json!({"object": "list", "model": said.call.model, "data": data});
    if said.told.times() > 0 {
        body["usage"] = usage;
    }
    Generated::whole(&body, 0)
}

pub(super) fn chat(said: &Said<'_>) -> Generated {
    if said.call.is_stream {
        return stream(said, "chat.completion.chunk", chat_delta);
    }
    let content = said.parts().concat();
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if let Some(name) = &said.call.tool {
        message["content"] = Value::Null;
        message["tool_calls"] = json!([{
            "id": said.id("call_"), "type": "function",
            "function": {"name": name, "arguments": content},
        }]);
    }
    whole(said, "chat.completion", &json!({"message": message, "logprobs": null}))
}

pub(super) fn completion(said: &Said<'_>) -> Generated {
    if said.call.is_stream {
        return stream(said, "text_completion", completion_delta);
    }
    whole(said, "text_completion", &json!({"text": said.text(), "logprobs": null}))
}

/// Every choice is the same.
fn whole(said: &Said<'_>, object: &str, choice: &Value) -> Generated {
    let choices = (0..said.call.choices).map(|index| {
        let mut choice = choice.clone();
        choice["index"] = index.into();
        choice["finish_reason"] = finish_reason(said).into();
        choice
    });
    let mut body = frame(said, object, choices.collect());
    body["service_tier"] = "default".into();
    if said.told.times() > 0 {
        body["usage"] = usage(said);
    }
    Generated::whole(&body, said.call.output_all())
}

/// What one chunk of a stream has: `None` opens it, `Some` is a token.
type Delta = fn(&Said<'_>, Option<&str>) -> Option<Value>;

fn stream(said: &Said<'_>, object: &str, delta: Delta) -> Generated {
    let mut answer = Generated::stream();
    let tells = said.call.tells_usage;
    let mut chunk = |choices: Vec<Value>, usage: Option<Value>, tokens: u64| {
        let mut body = frame(said, object, choices);
        if tells {
            // Chunks before the last say that there is none yet.
            body["usage"] = usage.unwrap_or(Value::Null);
        }
        answer.data(&body, tokens);
    };
    let of = |index: u64, part: Option<&str>| {
        let mut choice = delta(said, part)?;
        choice["index"] = index.into();
        choice["finish_reason"] = Value::Null;
        Some(vec![choice])
    };
    let all = 0..said.call.choices;
    for index in all.clone() {
        let _ = of(index, None).map(|choice| chunk(choice, None, 0));
    }
    for part in said.parts() {
        for index in all.clone() {
            let _ = of(index, Some(part)).map(|choice| chunk(choice, None, 1));
        }
    }
    for index in all {
        let mut choice = json!({"index": index, "finish_reason": finish_reason(said)});
        match object {
            "text_completion" => choice["text"] = "".into(),
            _ => choice["delta"] = json!({}),
        }
        chunk(vec![choice], None, 0);
    }
    let times = if tells { said.told.times() } else { 0 };
    (0..times).for_each(|_| chunk(Vec::new(), Some(usage(said)), 0));
    answer.raw("data: [DONE]\n\n", 0);
    answer
}

fn chat_delta(said: &Said<'_>, part: Option<&str>) -> Option<Value> {
    let delta = match (&said.call.tool, part) {
        (None, None) => json!({"role": "assistant", "content": "", "refusal": null}),
        (None, Some(token)) => json!({"content": token}),
        (Some(name), None) => {
            let function = json!({"name": name, "arguments": ""});
            let call = json!({"index": 0, "id": said.id("call_"), "type": "function",
                              "function": function});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        }
        (Some(_), Some(token)) => {
            json!({"tool_calls": [{"index": 0, "function": {"arguments": token}}]})
        }
    };
    Some(json!({"delta": delta, "logprobs": null}))
}

fn completion_delta(_: &Said<'_>, part: Option<&str>) -> Option<Value> {
    Some(json!({"text": part?, "logprobs": null}))
}

fn frame(said: &Said<'_>, object: &str, choices: Vec<Value>) -> Value {
    let prefix = if object == "text_completion" { "cmpl-" } else { "chatcmpl-" };
    json!({
        "id": said.id(prefix), "object": object, "created": said.epoch,
        "model": said.call.model, "system_fingerprint": "fp_0", "choices": choices,
    })
}

fn usage(said: &Said<'_>) -> Value {
    let (input, output) = (said.call.input, said.call.output_all());
    json!({
        "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": said.call.cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    })
}

fn finish_reason(said: &Said<'_>) -> &'static str {
    match said.call.tool {
        _ if said.call.is_cut() => "length",
        Some(_) => "tool_calls",
        None => "stop",
    }
}
