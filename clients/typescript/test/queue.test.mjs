// Queues and workers against the real service.

import assert from "node:assert/strict";
import { test } from "node:test";

import { PATIENCE, built, serve } from "./service.mjs";

const { GiveUp, JobFailed, LeaseLost, Queue, Rejected, RetryLater, Unavailable, Worker } = await built("index.js");

const RULES = ["mail", "work", "side", "beats", "stop", "waits", "spent", "flaky"]
  .map((name) => `[[queues]]\nname = "${name}"\nattempts = 3\nbackoff = "1ms"\n`)
  .join("") + '[[queues]]\nname = "short"\nlease = "3s"\n';
const url = await serve(RULES);
const open = (name) => new Queue(name, { url, timeoutMs: PATIENCE });

/** Runs `body` beside a worker of the queue. */
async function working(queue, handler, options, body) {
  const worker = new Worker(queue, handler, { waitMs: 200, ...options });
  const run = worker.run();
  try {
    await body();
  } finally {
    worker.stop();
    await run;
  }
}

test("a job is leased, settled, and its result is there", async () => {
  const queue = open("mail");
  const made = await queue.enqueue({ to: "ada" }, { group: "acme", priority: 2, key: "mail 7" });
  assert.equal(made.duplicate, false);
  assert.deepEqual((({ id, duplicate }) => ({ id, duplicate }))(await queue.enqueue("x", { key: "mail 7" })), { id: made.id, duplicate: true });
  const [lease] = await queue.lease(5, PATIENCE, "w1");
  assert.deepEqual([lease.id, lease.group, lease.priority, lease.json()], [made.id, "acme", 2, { to: "ada" }]);
  await queue.progress(lease, 1, 2);
  assert.equal((await queue.job(made.id)).state, "running");
  await queue.ack(lease, "sent");
  assert.equal(await queue.result(made.id), "sent");
  await assert.rejects(queue.fail(lease, "too late"), LeaseLost);
  const later = await queue.enqueue("x", { delayMs: 3_600_000 });
  await assert.rejects(queue.result(later.id, 1), /waiting after 1 ms/);
  assert.equal(await queue.reschedule(later.id), true);
  await queue.lease(1, PATIENCE);
  assert.equal(await queue.reschedule(later.id, 60_000), false);
});

test("bytes stay bytes, cancelled jobs are gone, and refusals let the group wait", async () => {
  const queue = open("waits");
  await queue.enqueueAll([{ payload: new Uint8Array([255, 0]), group: "g" }]);
  const [lease] = await queue.lease();
  assert.deepEqual([...lease.payload], [255, 0]);
  await queue.release(lease);
  const [again] = await queue.lease();
  const refusal = new Response(null, { status: 429, headers: { "Retry-After": "3600" } });
  let later;
  assert.throws(() => again.obey(refusal), (error) => (later = error) instanceof RetryLater);
  again.obey(new Response(null, { status: 503 }));
  assert.throws(() => again.obey({ status: 503, headers: { "retry-after": "1" } }), RetryLater);
  await queue.retryLater(again, later);
  assert.deepEqual(await queue.lease(), []);
  assert.equal(await queue.cancel(again.id), true);
  await assert.rejects(open("nowhere").enqueue("x"), Rejected);
  await assert.rejects(new Queue("mail", { url: "http://127.0.0.1:1" }).enqueue("x"), Unavailable);
});

test("what a handler returns is the result, and what it throws a failure", async () => {
  const queue = open("work");
  const refused = new Set();
  const handler = (lease) => {
    if (lease.payload === "hopeless") throw new GiveUp("no such user");
    if (lease.payload === "unlucky" && lease.failures < 2) throw new Error("try again");
    if (lease.payload === "limited" && refused.size === 0) {
      refused.add(lease.id);
      throw new RetryLater({ waitMs: 1 });
    }
    return { failures: lease.failures };
  };
  await working(queue, handler, { concurrency: 2 }, async () => {
    const ids = [];
    for (const payload of ["lucky", "unlucky", "limited", "hopeless"]) ids.push((await queue.enqueue(payload, { group: payload })).id);
    const results = [];
    for (const id of ids.slice(0, 3)) results.push(await queue.result(id, PATIENCE));
    assert.deepEqual(results, ['{"failures":0}', '{"failures":2}', '{"failures":0}']);
    await assert.rejects(queue.result(ids[3], PATIENCE), (error) => error instanceof JobFailed && /GiveUp: no such user/.test(error.message));
  });
});

test("jobs run side by side, and their leases are prolonged meanwhile", async () => {
  const queue = open("side");
  let running = 0;
  let all;
  const together = new Promise((resolve) => (all = resolve));
  const handler = async (lease) => {
    if (++running === 3) all();
    await together;
    const before = lease.expiresAtMs;
    while (lease.expiresAtMs === before) await new Promise((resolve) => setTimeout(resolve, 5));
  };
  await working(queue, handler, { concurrency: 3, heartbeatMs: 20 }, async () => {
    const jobs = await queue.enqueueAll([1, 2, 3].map((group) => ({ payload: "x", group: String(group) })));
    for (const { id } of jobs) assert.equal(await queue.result(id, PATIENCE), null);
  });
});

test("an answer that says its limit is spent lets the group wait without a refusal", async () => {
  const queue = open("spent");
  await queue.enqueueAll(["a", "b"].map((payload) => ({ payload, group: "g" })));
  const [first] = await queue.lease();
  const headers = new Headers({ "RateLimit-Remaining": "0", "RateLimit-Reset": "3600", "Set-Cookie": "secret" });
  first.obey({ status: 200, headers });
  assert.ok(!JSON.stringify(first.answer).includes("secret"));
  await queue.ack(first);
  assert.deepEqual(await queue.lease(), []);
  const { id } = await queue.enqueue("c", { group: "other" });
  const [lease] = await queue.lease();
  assert.equal(lease.id, id);
  lease.obey({ status: 403, headers: { "x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "60" } }, "discord");
  await queue.fail(lease, "no", false);
  await queue.enqueue("d", { group: "other" });
  assert.deepEqual(await queue.lease(), []);
});

test("a short lease is prolonged in time though heartbeats are not heard", async () => {
  let unheard = 2;
  const flaky = async (address, options) => {
    if (String(address).endsWith("/heartbeat") && unheard-- > 0) throw new TypeError("the service is being restarted");
    return fetch(address, options);
  };
  const queue = new Queue("short", { url, timeoutMs: PATIENCE, fetch: flaky });
  let before;
  const handler = async (lease) => {
    before = lease.expiresAtMs;
    while (lease.expiresAtMs === before && !lease.lost) await new Promise((resolve) => setTimeout(resolve, 5));
    return lease.attempt;
  };
  await working(queue, handler, {}, async () => {
    const { id } = await queue.enqueue("x");
    assert.equal(await queue.result(id, PATIENCE), "1");
  });
});

test("what came of a job is told as soon as the service answers again", async () => {
  let refused = 0;
  const flaky = async (address, options) => {
    if (String(address).endsWith("/ack") && refused < 7) {
      refused += 1;
      throw new TypeError("the service is being restarted");
    }
    return fetch(address, options);
  };
  const queue = new Queue("flaky", { url, timeoutMs: PATIENCE, fetch: flaky });
  await working(queue, () => "sent", { pausesMs: [1] }, async () => {
    const { id } = await queue.enqueue("x");
    assert.equal(await queue.result(id, PATIENCE), "sent");
  });
  assert.equal(refused, 7);
});

test("stopping finishes what runs and begins nothing, and a mistake ends the worker", async () => {
  const queue = open("stop");
  const [first, second] = await queue.enqueueAll([{ payload: "a", group: "g" }, { payload: "b", group: "g" }]);
  const worker = new Worker(queue, () => (worker.stop(), "finished"), { waitMs: 200 });
  await worker.run();
  assert.equal(await queue.result(first.id), "finished");
  assert.equal((await queue.job(second.id)).state, "waiting");
  await assert.rejects(new Worker(open("nowhere"), () => undefined).run(), Rejected);
});
