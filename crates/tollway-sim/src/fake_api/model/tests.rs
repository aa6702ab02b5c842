use std::time::Duration;

use serde_json::{Value, json};
use tollway_core::Timestamp;

use super::super::*;

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const CHAT: &str = "/v1/chat/completions";

fn upstream(api: &str) -> Upstream {
    Upstream::new(Spec::named(api).unwrap())
}

fn call_at(upstream: &mut Upstream, target: &str, body: &Value, at_ms: u64) -> Response {
    let body = body.to_string();
    let credential = Some("Bearer one");
    let request = Request { method: "POST", target, credential, body: body.as_bytes() };
    upstream.answer(&request, START.after(Duration::from_millis(at_ms)))
}

fn call(api: &str, target: &str, body: &Value) -> Response {
    call_at(&mut upstream(api), target, body, 0)
}

/// A request of one text, with more fields.
fn asking(text: &str, more: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn json_of(response: &Response) -> Value {
    serde_json::from_str(&response.body).unwrap()
}

/// The data of every event, the names of which must agree with it.
fn events(response: &Response) -> Vec<Value> {
    assert_eq!(response.field("content-type"), Some("text/event-stream"));
    let ends = response.pieces.iter().map(|piece| piece.end);
    assert_eq!(ends.clone().next_back(), Some(response.body.len()), "the pieces are the body");
    assert!(ends.is_sorted());
    let mut read = Vec::new();
    for event in response.body.split_terminator("\n\n") {
        let (name, data) = match event.split_once("\ndata: ") {
            Some((name, data)) => (name.strip_prefix("event: "), data),
            None => (None, event.strip_prefix("data: ").unwrap()),
        };
        if data == "[DONE]" {
            read.push(Value::from(data));
            continue;
        }
        let data: Value = serde_json::from_str(data).unwrap();
        assert!(name.is_none_or(|name| data["type"] == name), "{event}");
        read.push(data);
    }
    read
}

#[test]
fn an_answer_is_as_long_as_was_asked_for_and_no_longer_than_the_cap() {
    for (cap, output, finish) in [(400, 300, "stop"), (300, 300, "stop"), (299, 299, "length")] {
        let body = asking("Write 300 tokens, 2 cached.", json!({"max_tokens": cap}));
        let answer = json_of(&call("openai", CHAT, &body));
        assert_eq!(answer["choices"][0]["finish_reason"], finish);
        let usage = &answer["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&7.into(), &output.into())
        );
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 2);
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(text.ends_with('.'), finish == "stop");
        let message = json_of(&call("anthropic", "/v1/messages", &body));
        assert_eq!(message["usage"]["output_tokens"], output);
        assert_eq!(message["usage"]["input_tokens"], 5);
        assert_eq!(message["usage"]["cache_read_input_tokens"], 2);
        let stop = if finish == "stop" { "end_turn" } else { "max_tokens" };
        assert_eq!(message["stop_reason"], stop);
    }
}

#[test]
fn a_stream_is_its_whole_answer_in_pieces() {
    let whole = json_of(&call("openai", CHAT, &asking("9 tokens", json!({"n": 2}))));
    let told = json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}});
    let response = call("openai", CHAT, &asking("9 tokens", told));
    let mut read = events(&response);
    assert_eq!(read.pop(), Some("[DONE]".into()));
    assert_eq!(read.pop().unwrap()["usage"], whole["usage"]);
    let mut texts = [String::new(), String::new()];
    for chunk in &read {
        let choice = &chunk["choices"][0];
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        texts[choice["index"].as_u64().unwrap() as usize].push_str(text);
        assert_eq!(chunk["usage"], Value::Null);
    }
    assert_eq!(texts[0], whole["choices"][1]["message"]["content"]);
    assert_eq!((texts[1].as_str(), response.tokens), (&*texts[0], 18));
    let sent: u64 = response.pieces.iter().map(|piece| piece.tokens).sum();
    assert_eq!(sent, 18);
}

#[test]
fn usage_is_told_in_a_stream_of_chat_only_if_it_is_asked_for() {
    let response = call("openai", CHAT, &asking("hi", json!({"stream": true})));
    assert!(!response.body.contains("usage"), "{}", response.body);
}

#[test]
fn faults_tell_the_usage_twice_or_not_at_all() {
    let more = json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 9});
    let body = asking("hi", more);
    let apis = [("openai", CHAT, "prompt_tokens"), ("anthropic", "/v1/messages", "output_tokens")];
    for (api, target, place) in apis {
        let count = |told| {
            let mut upstream = upstream(api);
            upstream.inject(Fault::Usage { count: 1, told });
            [0, 1].map(|_| {
                let read = events(&call_at(&mut upstream, target, &body, 0));
                read.iter().filter(|event| event.to_string().contains(place)).count()
            })
        };
        let [usual, _] = count(UsageTold::Once);
        assert_eq!(count(UsageTold::Never), [0, usual], "{api}");
        assert_eq!(count(UsageTold::Twice), [usual + 1, usual], "{api}");
    }
}

#[test]
fn messages_stream_as_their_api_says() {
    let body = asking("3 tokens", json!({"stream": true, "max_tokens": 9}));
    let read = events(&call("anthropic", "/v1/messages", &body));
    let kinds: Vec<&str> = read.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let delta = "content_block_delta";
    let (first, last) = (
        ["message_start", "content_block_start", "ping"],
        ["content_block_stop", "message_delta", "message_stop"],
    );
    assert_eq!(kinds, [&first[..], &[delta; 3], &last].concat());
    assert_eq!(read[0]["message"]["usage"]["input_tokens"], 2);
    assert_eq!(read[7]["usage"]["output_tokens"], 3);
}

#[test]
fn a_response_streams_what_it_becomes() {
    let input = |stream: bool| json!({"model": "m", "input": "7 tokens", "stream": stream, "max_output_tokens": 5});
    let whole = json_of(&call("openai", "/v1/responses", &input(false)));
    assert_eq!(
        (&whole["status"], &whole["usage"]["output_tokens"]),
        (&"incomplete".into(), &5.into())
    );
    let read = events(&call("openai", "/v1/responses", &input(true)));
    let numbers: Vec<u64> = read.iter().map(|it| it["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..read.len() as u64).collect::<Vec<_>>());
    let last = read.last().unwrap();
    assert_eq!((&last["type"], &last["response"]), (&"response.incomplete".into(), &whole));
    let deltas = read.iter().filter(|it| it["type"] == "response.output_text.delta");
    let text: String = deltas.map(|it| it["delta"].as_str().unwrap()).collect();
    assert_eq!(text, whole["output"][0]["content"][0]["text"]);
}

#[test]
fn a_tool_is_called_with_arguments_that_are_json() {
    let tools =
        json!({"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]});
    let answer = json_of(&call("openai", CHAT, &asking("use the tool, 6 tokens", tools)));
    let called = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(called["name"], "look");
    serde_json::from_str::<Value>(called["arguments"].as_str().unwrap()).unwrap();
    let tools = json!({"tools": [{"name": "look", "input_schema": {}}], "max_tokens": 50});
    let answer =
        json_of(&call("anthropic", "/v1/messages", &asking("use the tool, 6 tokens", tools)));
    assert_eq!(answer["content"][0]["name"], "look");
    assert!(answer["content"][0]["input"]["text"].is_string(), "{answer}");
}

#[test]
fn each_model_has_limits_of_its_own_and_an_embedding_others() {
    let mut upstream = upstream("openai");
    let mut ask = |model: &str, cap: u64, at_ms| {
        let more = json!({"model": model, "max_tokens": cap});
        call_at(&mut upstream, CHAT, &asking("hello hello", more), at_ms)
    };
    assert_eq!(ask("a", 150_000, 0).field("x-ratelimit-remaining-tokens"), Some("50000"));
    let denied = ask("a", 60_000, 0);
    assert_eq!((denied.status, denied.field("retry-after")), (429, Some("3")));
    assert_eq!(json_of(&denied)["error"]["type"], "tokens");
    assert_eq!(ask("a", 60_000, 3_000).status, 200);
    assert_eq!(ask("b", 60_000, 3_000).status, 200);
    // What is larger than the limit is never served.
    let never = ask("c", 200_001, 3_000);
    assert_eq!((never.status, never.field("retry-after")), (429, None));
    let azure = "/openai/deployments/c/chat/completions?api-version=1";
    let answer = call_at(&mut upstream, azure, &json!({"messages": "hi"}), 3_000);
    assert_eq!(json_of(&answer)["model"], "c");
    let embed = json!({"model": "text-embedding-3-small", "input": ["ab", "cdef"]});
    let answer = call_at(&mut upstream, "/v1/embeddings", &embed, 0);
    assert_eq!(answer.field("x-ratelimit-limit-tokens"), Some("1000000"));
    assert_eq!(json_of(&answer)["data"].as_array().unwrap().len(), 2);
}

#[test]
fn output_may_exceed_what_is_left_and_cached_input_is_free() {
    let mut upstream = upstream("anthropic");
    let mut ask = |text: &str| {
        call_at(&mut upstream, "/v1/messages", &asking(text, json!({"max_tokens": 90_000})), 0)
    };
    let first = ask("7999 tokens, 3 cached");
    assert_eq!(first.field("anthropic-ratelimit-output-tokens-remaining"), Some("1"));
    assert_eq!(first.field("anthropic-ratelimit-input-tokens-remaining"), Some("29997"));
    assert_eq!(ask("500 tokens").field("anthropic-ratelimit-output-tokens-remaining"), Some("0"));
    let denied = ask("1 token");
    assert_eq!((denied.status, denied.field("retry-after")), (429, Some("4")));
    assert!(denied.body.contains("output-tokens"), "{}", denied.body);
}

#[test]
fn what_is_no_call_is_refused_in_the_words_of_the_api() {
    let bad = [&b"{"[..], b"[]", br#"{"messages":[]}"#, br#"{"model":"m","max_tokens":0}"#];
    for (api, target) in [("openai", CHAT), ("anthropic", "/v1/messages")] {
        for body in bad {
            let request = Request { method: "POST", target, credential: None, body };
            let answer = upstream(api).answer(&request, START);
            assert_eq!(answer.status, 400, "{api}: {}", answer.body);
            assert_eq!(json_of(&answer)["error"]["type"], "invalid_request_error");
        }
    }
    let huge = asking("99999999999999999999 tokens", json!({"max_tokens": u64::MAX, "n": 9_999}));
    assert_eq!(call("openai", CHAT, &huge).status, 429);
}
