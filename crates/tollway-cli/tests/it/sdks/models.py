"""Calls of models by real SDKs, unmodified: whole, streamed, with tools, and embeddings.

    models.py NAME ADDRESS

What the SDKs read is printed as JSON, a line for each call, without ids and times: through a proxy
it must be what it is without one. Some things must hold anyway, and are asserted here.
"""

import json
import sys

NAMELESS = {"id", "created", "created_at", "call_id", "item_id", "completed_at"}
PROMPT = [{"role": "user", "content": "Write 40 tokens, 3 cached."}]
CALL = [{"role": "user", "content": "Please use the tool, 12 tokens."}]
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def show(*read):
    def plain(value):
        if hasattr(value, "model_dump"):
            value = value.model_dump(mode="json", warnings=False)
        if isinstance(value, dict):
            return {name: plain(it) for name, it in value.items() if name not in NAMELESS}
        return [plain(it) for it in value] if isinstance(value, list) else value

    print(json.dumps([plain(it) for it in read], sort_keys=True))


def openai(address):
    from openai import OpenAI

    client = OpenAI(api_key="one", base_url=f"{address}/v1", max_retries=0)
    chat = client.chat.completions
    asked = {"model": "gpt-4o-mini", "messages": PROMPT}
    whole = chat.create(**asked)
    assert whole.usage.completion_tokens == 40, whole.usage
    show(whole, chat.create(**asked, n=2, max_tokens=7))
    chunks = list(chat.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage == whole.usage, chunks[-1]
    text = "".join(it.choices[0].delta.content or "" for it in chunks if it.choices)
    assert text == whole.choices[0].message.content, text
    show(*chunks, *chat.create(**asked, stream=True, max_tokens=5))
    tool = {"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}
    with chat.stream(model="gpt-4o-mini", messages=CALL, tools=[tool]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments)["text"], message
    show(message, client.embeddings.create(model="text-embedding-3-small", input=["a", "b"]))
    show(client.completions.create(model="m", prompt="9 tokens", max_tokens=4))
    show(*client.completions.create(model="m", prompt="9 tokens", stream=True))
    asked = {"model": "gpt-4o-mini", "input": "9 tokens"}
    show(client.responses.create(**asked), client.responses.create(**asked, max_output_tokens=3))
    with client.responses.stream(**asked) as stream:
        show(*stream, stream.get_final_response())
    tool = {"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}
    with client.responses.stream(model="m", input=CALL[0]["content"], tools=[tool]) as stream:
        final = stream.get_final_response()
    assert final.output[0].name == "look" and json.loads(final.output[0].arguments), final
    show(final)


def anthropic(address):
    from anthropic import Anthropic

    client = Anthropic(api_key="one", base_url=address, max_retries=0)
    asked = {"model": "claude-any", "messages": PROMPT}
    whole = client.messages.create(**asked, max_tokens=99)
    assert (whole.usage.output_tokens, whole.stop_reason) == (40, "end_turn"), whole
    show(whole, client.messages.create(**asked, max_tokens=7))
    with client.messages.stream(**asked, max_tokens=99) as stream:
        show(*stream)
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text, final
    assert final.usage.cache_read_input_tokens == 3, final.usage
    show(final, *client.messages.create(**asked, max_tokens=5, stream=True))
    tool = {"name": "look", "input_schema": PARAMETERS}
    with client.messages.stream(model="m", messages=CALL, max_tokens=50, tools=[tool]) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[0].input["text"], final
    show(final, client.messages.count_tokens(**asked))


if __name__ == "__main__":
    {"openai": openai, "anthropic": anthropic}[sys.argv[1]](sys.argv[2])
