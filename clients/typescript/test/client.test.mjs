// The client against the real service, and against servers that misbehave.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test } from "node:test";

import { PATIENCE, built, endings, serve } from "./service.mjs";

const { Rejected, Tollway, Unavailable } = await built("index.js");
const require = createRequire(join(process.env.TOLLWAY_FACE, "package.json"));

const RULES = readFileSync(new URL("../../policies.toml", import.meta.url), "utf8");

/** Accepts everybody; then says nothing, or a byte now and then for ever. */
async function misbehave(drips) {
  const open = new Set();
  const server = createServer((stream) => {
    open.add(stream);
    stream.on("error", () => undefined);
    if (!drips) return;
    stream.write("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n");
    const timer = setInterval(() => stream.write(" "), 20);
    stream.on("close", () => clearInterval(timer));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  endings.push(() => {
    for (const stream of open) stream.destroy();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const url = await serve(RULES);
const gate = new Tollway({ url, timeoutMs: PATIENCE, onFailure: "throw" });

test("units are taken until there are none", async () => {
  const verdicts = [];
  for (let index = 0; index < 4; index++) verdicts.push(await gate.check("api", "taken"));
  assert.deepEqual(verdicts.map((verdict) => verdict.allowed), [true, true, true, false]);
  assert.equal(verdicts[3].deniedBy, "api");
  assert.ok(verdicts[3].retryAfterMs > 0 && verdicts[3].retryAfterMs <= 1_200_000);
  assert.ok(verdicts[3].headers["retry-after"] && verdicts[0].headers["ratelimit"]);
});

test("a denial names the owner that denied", async () => {
  assert.ok((await gate.check("teams", "somebody", 40)).allowed);
  assert.ok((await gate.check("teams", "a", 10)).allowed);
  const denied = await gate.check("teams", "a");
  assert.deepEqual([denied.deniedBy, denied.deniedByOwner], ["teams", "a"]);
  assert.equal((await gate.check("teams", "somebody")).deniedByOwner, null);
});

test("several charges are taken together or not at all", async () => {
  const verdict = await gate.checkAll([{ policy: "tokens", key: "both", cost: 10 }, { policy: "api", key: "both", cost: 4 }]);
  assert.deepEqual([verdict.allowed, verdict.deniedBy, verdict.retryAfterMs], [false, "api", null]);
  assert.equal((await gate.peek("tokens", "both")).charges[0].remaining, 100);
});

test("a reservation is settled at its real cost, once", async () => {
  const held = await gate.reserve("tokens", "held", 60);
  assert.equal((await gate.check("tokens", "held", 50)).allowed, false);
  await held.commit(20);
  await held.cancel();
  assert.equal((await gate.peek("tokens", "held")).charges[0].remaining, 80);
});

test("a limit comes with the call", async () => {
  const limit = { algorithm: "leaky-bucket", size: 2, drip_interval: "1h" };
  const verdicts = [];
  for (let index = 0; index < 3; index++) verdicts.push(await gate.check(limit, "uploads ada"));
  assert.deepEqual(verdicts.map((verdict) => verdict.allowed), [true, true, false]);
  await gate.reset(limit, "uploads ada");
  const both = await gate.checkAll([{ policy: limit, key: "uploads ada" }, { policy: "tokens", key: "uploads" }]);
  assert.deepEqual(both.charges.map((charge) => charge.remaining), [1, 99]);
  await assert.rejects(gate.check({ ...limit, size: "big" }, "x"), (error) => /limit.size: expected/.test(error.message));
});

test("refund and reset give back", async () => {
  await gate.check("api", "back", 3);
  await gate.refund("api", "back", 1);
  assert.equal((await gate.peek("api", "back")).charges[0].remaining, 1);
  await gate.reset("api", "back");
  assert.equal((await gate.peek("api", "back")).charges[0].remaining, 3);
});

test("a mistake is thrown whatever the failure mode", async () => {
  const lenient = new Tollway({ url, timeoutMs: PATIENCE, onFailure: "allow" });
  await assert.rejects(lenient.check("no such policy", "x"), (error) => error instanceof Rejected && error.status === 404);
  await assert.rejects(lenient.check("api", "x", 0), Rejected);
});

test("a token is shown", async () => {
  const guarded = await serve(RULES, { TOLLWAY_TOKEN: "secret" });
  await assert.rejects(new Tollway({ url: guarded, timeoutMs: PATIENCE }).check("api", "x"), (error) => error.status === 401);
  assert.ok((await new Tollway({ url: guarded, timeoutMs: PATIENCE, token: "secret" }).check("api", "x")).allowed);
});

test("the failure mode answers, and no call outlives its timeout", async () => {
  for (const bad of ["http://127.0.0.1:1", await misbehave(false), await misbehave(true)]) {
    for (const onFailure of ["allow", "deny"]) {
      const verdict = await new Tollway({ url: bad, timeoutMs: 100, onFailure }).check("api", "x");
      assert.deepEqual([verdict.allowed, verdict.failed], [onFailure === "allow", true], bad);
    }
    await assert.rejects(new Tollway({ url: bad, timeoutMs: 100, onFailure: "throw" }).check("api", "x"), Unavailable);
  }
});

async function threeThenRefused(base) {
  for (let index = 0; index < 3; index++) {
    const answer = await fetch(base);
    assert.equal(answer.status, 200);
    assert.ok(answer.headers.get("ratelimit"));
    assert.equal(await answer.text(), "hello");
  }
  const refused = await fetch(base);
  assert.equal(refused.status, 429);
  assert.match(refused.headers.get("content-type"), /problem\+json/);
  assert.ok(Number(refused.headers.get("retry-after")) > 0);
  assert.deepEqual((await refused.json())["violated-policies"], ["api"]);
  assert.equal((await fetch(`${base}/health`)).status, 200);
}

test("the middleware for Express answers 429 and passes fields on", async () => {
  const { limit } = await built("express.js");
  const app = require("express")();
  app.use(limit(gate, { policy: "api", key: (request) => (request.path === "/health" ? null : "express") }));
  app.get("/{*any}", (_request, response) => response.send("hello"));
  const server = await new Promise((resolve) => {
    const listening = app.listen(0, "127.0.0.1", () => resolve(listening));
  });
  endings.push(() => server.close());
  await threeThenRefused(`http://127.0.0.1:${server.address().port}`);
});

test("the plugin for Fastify answers 429 and passes fields on", async () => {
  const { limit } = await built("fastify.js");
  const app = require("fastify")();
  await app.register(limit(gate, { policy: "api", key: (request) => (request.url === "/health" ? null : "fastify") }));
  app.get("/*", async () => "hello");
  endings.push(() => app.close());
  await threeThenRefused(await app.listen({ port: 0, host: "127.0.0.1" }));
});

test("a key is given a quota of its own and units beyond it", async () => {
  const boss = new Tollway({ url: await serve(RULES, { TOLLWAY_TOKEN: "boss" }), token: "boss", timeoutMs: PATIENCE, onFailure: "throw" });
  const until = new Date(Date.now() + 86_400_000);
  const own = await boss.setQuota("api", "a/b", "9/1h", { until, note: "trial" });
  assert.deepEqual([own.key, own.quota, own.note, own.kept], ["a/b", "9/1h", "trial", "process"]);
  await boss.grant("api", "a/b", 5, { until });
  assert.equal((await boss.peek("api", "a/b")).charges[0].remaining, 14);
  await boss.setQuota("api", "vip-*", "7/1h");
  const keys = [];
  for await (const { key } of boss.quotas("api")) keys.push(key);
  assert.deepEqual(keys, ["a/b", "vip-*"]);
  assert.deepEqual([await boss.removeQuota("api", "a/b"), await boss.removeQuota("api", "a/b")], [true, false]);
  assert.equal(await boss.quota("api", "a/b"), null);
  await assert.rejects(boss.setQuota("none", "k", "9/1h"), Rejected);
  await assert.rejects(boss.setQuota("api", "k", "many"), (error) => error.detail.startsWith("quota: "));
});
