"""A real client, unmodified, that makes many calls at once through a proxy.

    clients.py WHAT COUNT ADDRESS

WHAT names the client and the call, such as `openai.chat`. The last line that it prints is JSON: how
many calls succeeded, and what the others raised.
"""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor


def said(number):
    return [{"role": "user", "content": f"Say {number}."}]


async def openai_chat(count, address):
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key="one", base_url=f"{address}/v1") as client:

        def chat(number):
            return client.chat.completions.create(
                model="gpt-4o-mini", messages=said(number), max_tokens=20
            )

        return await at_once(count, chat)


async def openai_embeddings(count, address):
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key="one", base_url=f"{address}/v1") as client:

        def embed(number):
            return client.embeddings.create(model="text-embedding-3-small", input=f"{number}")

        return await at_once(count, embed)


async def anthropic_messages(count, address):
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(api_key="one", base_url=address) as client:

        def message(number):
            return client.messages.create(
                model="claude-sonnet-4-5", messages=said(number), max_tokens=20
            )

        return await at_once(count, message)


async def slack_post(count, address):
    from slack_sdk.web.async_client import AsyncWebClient

    client = AsyncWebClient(token="one", base_url=f"{address}/api/")

    def post(number):
        return client.chat_postMessage(channel=f"C{number % 3}", text=f"{number}")

    return await at_once(count, post)


async def slack_react(count, address):
    from slack_sdk.web.async_client import AsyncWebClient

    client = AsyncWebClient(token="one", base_url=f"{address}/api/")

    def react(number):
        return client.reactions_add(channel="C1", name="eyes", timestamp=f"17.{number}")

    return await at_once(count, react)


async def stripe_customers(count, address):
    import stripe

    client = stripe.StripeClient("sk_test_one", base_addresses={"api": address})
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max_workers=count) as pool:

        def create(number):
            parameters = {"name": f"customer {number}"}
            call = lambda: client.v1.customers.create(params=parameters)  # noqa: E731
            return loop.run_in_executor(pool, call)

        return await at_once(count, create)


async def discord_send(count, address):
    import discord

    # The library has no setting for this.
    discord.http.Route.BASE = f"{address}/api/v10"
    async with discord.Client(intents=discord.Intents.none()) as bot:
        await bot.login("one")

        def send(number):
            return bot.get_partial_messageable(100 + number % 3).send(f"{number}")

        return await at_once(count, send)


async def at_once(count, call):
    return await asyncio.gather(*map(call, range(count)), return_exceptions=True)


WHATS = {
    "anthropic.messages": anthropic_messages,
    "discord.send": discord_send,
    "openai.chat": openai_chat,
    "openai.embeddings": openai_embeddings,
    "slack.post": slack_post,
    "slack.react": slack_react,
    "stripe.customers": stripe_customers,
}


def main(what, count, address):
    results = asyncio.run(WHATS[what](int(count), address))
    failed = [repr(result) for result in results if isinstance(result, Exception)]
    print(json.dumps({"served": len(results) - len(failed), "failed": failed[:5]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
