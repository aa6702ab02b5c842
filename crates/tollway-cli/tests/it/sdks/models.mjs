// Calls of models by the SDKs for Node, unmodified.
//
//     models.mjs NAME ADDRESS
//
// What they read is printed as JSON without ids and times, as models.py does.

import assert from 'node:assert';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const nameless = new Set(['id', 'created', 'created_at', 'call_id', 'item_id', 'completed_at']);
const plain = (name, value) => (nameless.has(name) || name === '_request_id' ? undefined : value);
const show = (...read) => console.log(JSON.stringify(read, plain));
const all = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};
const prompt = [{ role: 'user', content: 'Write 40 tokens, 3 cached.' }];

async function openai(address) {
  const client = new OpenAI({ apiKey: 'one', baseURL: `${address}/v1`, maxRetries: 0 });
  const asked = { model: 'gpt-4o-mini', messages: prompt };
  const whole = await client.chat.completions.create(asked);
  const told = { stream: true, stream_options: { include_usage: true } };
  const chunks = await all(await client.chat.completions.create({ ...asked, ...told }));
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
  assert.equal(text, whole.choices[0].message.content);
  show(whole, chunks);
  show(await client.embeddings.create({ model: 'text-embedding-3-small', input: 'a' }));
  show(await all(client.responses.stream({ model: 'm', input: '9 tokens' })));
}

async function anthropic(address) {
  const client = new Anthropic({ apiKey: 'one', baseURL: address, maxRetries: 0 });
  const asked = { model: 'claude-any', messages: prompt, max_tokens: 99 };
  const whole = await client.messages.create(asked);
  const stream = client.messages.stream(asked);
  show(whole, await all(stream));
  const final = await stream.finalMessage();
  assert.deepEqual(final.content, whole.content);
  assert.equal(final.usage.output_tokens, 40);
}

await { openai, anthropic }[process.argv[2]](process.argv[3]);
