"""Everyday calls of real SDKs, unmodified, through the proxy to the fake upstream.

    everyday.py NAME PROXY FAKE

Each SDK must read every body, and raise the class that it has for a credential that is refused, for
what is not there, and for a limit. A limit is met at FAKE itself: the proxy would not let it happen.
"""

import asyncio
import io
import json
import sys
import urllib.request

# More than the fake upstream looks at.
LARGE = b"x" * (4 << 20)


def lower(fake, bucket):
    """From now on the fake upstream allows one request in a window."""
    fault = json.dumps({"do": "set-limit", "bucket": bucket, "limit": 1}).encode()
    urllib.request.urlopen(f"{fake}/_fake/faults", fault, timeout=30).close()


async def raises(kind, call):
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


async def openai(proxy, fake):
    import openai as sdk

    client = sdk.AsyncOpenAI(api_key="one", base_url=f"{proxy}/v1")
    said = [{"role": "user", "content": "Say hello."}]
    chat = await client.chat.completions.create(model="gpt-4o-mini", messages=said)
    assert chat.choices[0].message.content == "Hello." and chat.usage.total_tokens == 5, chat
    found = await client.embeddings.create(model="text-embedding-3-small", input="hello")
    assert found.data[0].embedding == [0.0, 0.5, 1.0], found
    response = await client.responses.create(model="gpt-4o-mini", input="Say hello.")
    assert response.output_text == "Hello.", response
    assert [model.id async for model in client.models.list()] == ["gpt-4o-mini"]
    file = await client.files.create(file=io.BytesIO(LARGE), purpose="user_data")
    assert file.object == "file", file
    await raises(sdk.NotFoundError, client.models.retrieve("404-model"))
    revoked = client.with_options(api_key="revoked")
    await raises(sdk.AuthenticationError, revoked.models.list())
    lower(fake, "requests")
    hasty = sdk.AsyncOpenAI(api_key="two", base_url=f"{fake}/v1", max_retries=0)
    await hasty.models.list()
    error = await raises(sdk.RateLimitError, hasty.models.list())
    assert error.code == "rate_limit_exceeded", error


async def anthropic(proxy, fake):
    import anthropic as sdk

    client = sdk.AsyncAnthropic(api_key="one", base_url=proxy)
    asked = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "Hello?"}]}
    message = await client.messages.create(max_tokens=20, **asked)
    assert message.content[0].text == "Hello." and message.usage.output_tokens == 2, message
    assert (await client.messages.count_tokens(**asked)).input_tokens == 2
    assert [model.id async for model in client.models.list()] == ["claude-sonnet-4-5"]
    await raises(sdk.NotFoundError, client.models.retrieve("404-model"))
    revoked = client.with_options(api_key="revoked")
    await raises(sdk.AuthenticationError, revoked.models.list())
    lower(fake, "requests")
    hasty = sdk.AsyncAnthropic(api_key="two", base_url=fake, max_retries=0)
    await hasty.models.list()
    error = await raises(sdk.RateLimitError, hasty.models.list())
    assert error.body["error"]["type"] == "rate_limit_error", error


async def slack(proxy, fake):
    from slack_sdk.errors import SlackApiError
    from slack_sdk.web.async_client import AsyncWebClient

    client = AsyncWebClient(token="one", base_url=f"{proxy}/api/")
    assert (await client.auth_test())["user_id"] == "U1"
    posted = await client.chat_postMessage(channel="C7", text="hello")
    assert (posted["channel"], posted["message"]["text"]) == ("C7", "hello"), posted
    assert (await client.reactions_add(channel="C7", name="eyes", timestamp=posted["ts"]))["ok"]
    pages = [page async for page in await client.conversations_list()]
    assert pages[0]["channels"][0]["id"] == "C1", pages
    assert (await client.conversations_history(channel="C1"))["messages"][0]["text"] == "hello"
    assert (await client.users_list())["members"][0]["id"] == "U1"
    missing = await raises(SlackApiError, client.api_call("404.method"))
    assert missing.response["error"] == "unknown_method", missing
    revoked = AsyncWebClient(token="revoked", base_url=f"{proxy}/api/")
    assert (await raises(SlackApiError, revoked.auth_test())).response["error"] == "invalid_auth"
    lower(fake, "method")
    hasty = AsyncWebClient(token="two", base_url=f"{fake}/api/")
    await hasty.auth_test()
    error = await raises(SlackApiError, hasty.auth_test())
    assert error.response["error"] == "ratelimited" and error.response.status_code == 429, error
    assert int(error.response.headers["Retry-After"]) >= 1, error


async def stripe(proxy, fake):
    import stripe as sdk

    def client(key, url, **more):
        return sdk.StripeClient(key, base_addresses={"api": url}, **more).v1

    one = client("sk_test_one", proxy)
    customer = one.customers.create(params={"name": "Ada L.", "email": "ada@example.com"})
    assert (customer.name, customer.email) == ("Ada L.", "ada@example.com"), customer
    assert one.customers.retrieve(customer.id).id == customer.id
    charges = one.charges.list(params={"limit": 3})
    assert [charge.status for charge in charges.auto_paging_iter()] == ["succeeded"], charges
    assert one.balance.retrieve().available[0].currency == "usd"
    threaded = asyncio.to_thread
    missing = threaded(one.customers.retrieve, "404")
    error = await raises(sdk.InvalidRequestError, missing)
    assert error.code == "resource_missing", error
    revoked = client("revoked", proxy)
    await raises(sdk.AuthenticationError, threaded(revoked.balance.retrieve))
    lower(fake, "endpoint")
    hasty = client("sk_test_two", fake, max_network_retries=0)
    await raises(sdk.RateLimitError, threaded(lambda: [hasty.balance.retrieve() for _ in "123456"]))


async def discord(proxy, fake):
    import discord as sdk

    async def bot(url, token):
        # The library has no setting for this.
        sdk.http.Route.BASE = f"{url}/api/v10"
        found = sdk.Client(intents=sdk.Intents.none())
        await found.login(token)
        return found

    one = await bot(proxy, "one")
    assert one.user.name == "judged" and one.application.name == "judged", one.user
    channel = one.get_partial_messageable(77)
    message = await channel.send("hello <you>")
    assert (message.content, message.channel.id) == ("hello <you>", 77), message
    assert message.author.bot
    edited = await message.edit(content="bye")
    assert edited.content == "bye" and edited.edited_at is not None, edited
    await message.add_reaction("\N{EYES}")
    assert [found.content async for found in channel.history(limit=1)] == ["hello"]
    assert (await channel.fetch_message(5)).id == 5
    await message.delete()
    with_file = await channel.send(file=sdk.File(io.BytesIO(LARGE), filename="large.bin"))
    assert with_file.id, with_file
    await raises(sdk.NotFound, one.get_partial_messageable(404_1).send("lost"))
    await raises(sdk.Forbidden, one.get_partial_messageable(403_1).send("lost"))
    await one.close()
    await raises(sdk.LoginFailure, bot(proxy, "revoked"))
    lower(fake, "messages")
    # Each of two bots believes that it has the whole bucket. The library waits as it is told.
    hasty = [await bot(fake, "two") for _ in range(2)]
    sent = [found.get_partial_messageable(78).send("quick") for found in hasty]
    assert len(await asyncio.gather(*sent)) == 2
    for found in hasty:
        await found.close()


def main(name, proxy, fake):
    sdks = {sdk.__name__: sdk for sdk in [anthropic, discord, openai, slack, stripe]}
    asyncio.run(sdks[name](proxy, fake))
    print("read everything")


if __name__ == "__main__":
    main(*sys.argv[1:])
