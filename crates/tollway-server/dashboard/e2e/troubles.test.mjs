// Banners: each kind of trouble is told in a sentence, with what to do.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertAccessible, hasText, isLive, launch, open } from "./browser.mjs";
import { eventually, Service } from "./service.mjs";

const RULES = `
[[policies]]
name = "hour"
quota = "5/1h"
`;

/** Every kind, what is said of it, and what is said to be done. */
const KINDS = [
  [{ kind: "draining" }, "The service is stopping.", "finishes the requests under way"],
  [{ kind: "store_down", since_ms: 1_700_000_000_000, reason: "Connection refused <b>", unanswered: 1 }, "The store has not answered since", "1 request was decided without it", "Start the store again", "Reason: Connection refused <b>"],
  [{ kind: "degraded", decisions: 17 }, "17 decisions were made without the store.", "Check its load"],
  [{ kind: "queue_store_down", since_ms: 1_700_000_000_000, reason: "no route" }, "The queue store has not answered since", "Stored jobs are kept."],
  [{ kind: "queue_store_full" }, "The disk of the queue file is full.", "Free some space"],
  [{ kind: "queue_stuck", queue: "mail", why: "paused", waiting: 3, running: 0, oldest_ms: 65_000 }, "The queue mail is paused and 3 jobs wait, the oldest for 1 min 5 s.", "Resume it", "Open the queue"],
  [{ kind: "queue_stuck", queue: "mail", why: "no_worker", waiting: 1, running: 0, oldest_ms: 0 }, "No worker takes jobs from the queue mail: 1 job waits.", "Start a worker"],
  [{ kind: "queue_stuck", queue: "mail", why: "none_ends", waiting: 2, running: 1, oldest_ms: 0 }, "Nothing moves in the queue mail", "1 job runs without an end", "Look at what their workers are doing."],
  [{ kind: "config_stale", reason: "tollway.toml:3: qota" }, "The configuration on disk is not in force.", "Correct the file", "tollway.toml:3: qota"],
  [{ kind: "xds_down", since_ms: 1_700_000_000_000, has_rules: true, reason: "Connection refused" }, "The control plane has not been connected since", "stay in force", "Reason: Connection refused"],
  [{ kind: "xds_refused", version: "7", reason: "domain <edge>" }, "Version 7 of the rules that the control plane pushed is refused.", "Correct the rules there.", "Reason: domain <edge>"],
  [{ kind: "pressure", forgotten: 2, refused: 1, fill: 1 }, "Memory for keys is full: 1 request of a new key was denied, 2 keys were forgotten early.", "--memory-bytes"],
  [{ kind: "clock_off", off_ms: 90_000 }, "The clock of this node is 1 min 30 s ahead of the time of its system.", "NTP"],
  [{ kind: "clock_jumped", jump_ms: -3_600_000 }, "The time of this system was set back by 1 h.", "NTP"],
  [{ kind: "snapshot_old", age_ms: 600_000, reason: "No space left on device" }, "The last snapshot is 10 min old.", "Check that there is space", "No space left on device"],
];

let browser;
let service;
before(async () => {
  [browser, service] = await Promise.all([launch(), Service.start(RULES, { TOLLWAY_TOKEN: "the-boss" })]);
});
after(async () => {
  await browser?.close();
  await service?.dispose();
});

/** Makes the page believe that its service has these troubles. */
function pretend(troubles) {
  const real = window.fetch;
  window.fetch = async (...asked) => {
    const answer = await real(...asked);
    if (!answer.ok || !String(asked[0]).includes("/dashboard/events")) return answer;
    const changed = new TransformStream({
      transform: (text, out) => out.enqueue(text.replace('"troubles":[]', `"troubles":${JSON.stringify(troubles)}`)),
    });
    const body = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(changed).pipeThrough(new TextEncoderStream());
    return new Response(body, { status: answer.status });
  };
}

test("every kind of trouble is told in a sentence, with what to do", async () => {
  for (const [width, theme] of [[390, "dark"], [1200, "light"]]) {
    const context = await browser.newContext({ viewport: { width, height: 844 }, colorScheme: theme });
    await context.addInitScript(() => sessionStorage.setItem("tollway-token", "the-boss"));
    await context.addInitScript(pretend, KINDS.map(([trouble]) => trouble));
    const page = await context.newPage();
    await page.goto(service.url);
    const banners = page.locator("#banner p");
    await eventually("all are told", async () => (await banners.count()) === KINDS.length);
    for (const [index, [{ kind }, ...words]] of KINDS.entries()) {
      const told = await banners.nth(index).textContent();
      for (const part of words) assert.ok(told.includes(part), `${kind}: ${part} in: ${told}`);
    }
    assert.equal(await page.locator("#banner b").count(), 0, "a reason is text");
    assert.ok((await page.locator("#alert").textContent()).startsWith("The service is stopping. The store has not"), "it is read out");
    // However much is wrong, there is room for what one looks at.
    const box = await page.locator("#top").boundingBox();
    assert.ok(box.height < 844 * 0.6, `${box.height}`);
    await assertAccessible(page, `banners at ${width}`);
    const shots = process.env.TOLLWAY_SHOTS;
    if (shots) await page.screenshot({ path: `${shots}/banners-${width}-${theme}.png` });
    await context.close();
  }
});

test("figures that change neither replace a link nor are read out again", async () => {
  const context = await browser.newContext();
  await context.addInitScript(() => sessionStorage.setItem("tollway-token", "the-boss"));
  // Each event says that the oldest job has waited longer.
  await context.addInitScript(pretend, [{ kind: "queue_stuck", queue: "mail", why: "paused", waiting: 3, running: 0, oldest_ms: 60_000 }]);
  await context.addInitScript(() => {
    const { parse } = JSON;
    let oldest_ms = 60_000;
    JSON.parse = (text) => {
      const value = parse(text);
      for (const trouble of value?.troubles ?? []) trouble.oldest_ms = oldest_ms += 1_000;
      return value;
    };
  });
  const page = await context.newPage();
  await page.goto(service.url);
  const link = await page.getByRole("link", { name: "Open the queue" }).elementHandle();
  const spoken = await page.locator("#alert").textContent();
  await hasText(page, "#banner p", "the oldest for 1 min 4 s");
  assert.ok(await link.evaluate((element) => element.isConnected), "the link is still there");
  assert.equal(await page.locator("#alert").textContent(), spoken);
  await context.close();
});

test("memory that is full is said while keys suffer by it", async () => {
  const small = await Service.start(`memory_bytes = 65536\n${RULES}`);
  try {
    const { page, complaints } = await open(browser, small);
    await isLive(page);
    for (let batch = 0; batch < 12; batch++) {
      const requests = Array.from({ length: 500 }, (_, key) => ({ policy: "hour", key: `key-${batch}-${key}` }));
      assert.equal((await small.request("POST", "/v1/check-batch", { requests })).status, 200);
    }
    await hasText(page, "#banner p", "Memory for keys is full");
    await hasText(page, "#banner p", "forgotten early");
    assert.deepEqual(complaints, []);
  } finally {
    await small.dispose();
  }
});
