// A fire drill: a crawler, an exhausted customer, a dead Redis and a queue without a worker, all at
// once. From the page alone: who, why, and what to do, in at most four clicks each.

import assert from "node:assert/strict";
import { test } from "node:test";
import { assertAccessible, hasText, isLive, launch, open } from "./browser.mjs";
import { eventually, freePort, redis, Service } from "./service.mjs";

const RULES = `
tokens = [{ token = "the-boss", role = "admin", name = "ada" }]
[[policies]]
name = "web"
quota = "20/1h"
on_store_error = "local"
[[policies]]
name = "plan"
quota = "5/1h"
on_store_error = "local"
[[queues]]
name = "mail"
group_limits = ["slots 10/1s"]
`;
const CLICKS_MAX = 4;
const CRAWLER = "203.0.113.77";
const CUSTOMER = "customer-acme";

/** The page as somebody has it who was woken up: from the first view, with clicks that are counted. */
class Operator {
  clicks = 0;

  constructor(page) {
    this.page = page;
  }

  static async wakeUp(browser, service, look = {}) {
    const opened = await open(browser, service, { token: "the-boss", ...look });
    await isLive(opened.page);
    return { operator: new Operator(opened.page), ...opened };
  }

  async click(locator) {
    this.clicks += 1;
    assert.ok(this.clicks <= CLICKS_MAX, `more than ${CLICKS_MAX} clicks`);
    await locator.click();
  }

  async sees(selector, ...texts) {
    let found = this.page.locator(selector);
    for (const text of texts) found = found.filter({ hasText: text });
    await found.first().waitFor({ timeout: 30_000 });
  }
}

/** Everything goes wrong at once. */
async function disaster(service, stopRedis) {
  const ask = async (policy, key, cost = 1) => (await service.request("POST", "/v1/check", { policy, key, cost }, "the-boss")).status;
  for (let job = 0; job < 3; job++) {
    assert.equal((await service.request("POST", "/v1/queues/mail/jobs", { group: "acme", payload: "x" }, "the-boss")).status, 201);
  }
  assert.equal(await ask("plan", CUSTOMER, 3), 200);
  for (let time = 0; time < 4; time++) assert.equal(await ask("plan", CUSTOMER, 3), 429);
  await service.check("web", CRAWLER, 900, "the-boss");
  for (let other = 0; other < 8; other++) await service.check("web", `visitor-${other}`, 3, "the-boss");
  await stopRedis();
  await eventually("the outage is noticed", async () => {
    await service.check("web", CRAWLER, 50, "the-boss");
    return JSON.parse((await service.request("GET", "/readyz", undefined, "the-boss")).text).store.up === false;
  });
  return ask;
}

async function findsTheCrawler(browser, service, ask) {
  const { operator, page, context, complaints } = await Operator.wakeUp(browser, service);
  // Who and why: the first row.
  await operator.sees("#top-keys-list tbody tr:first-child", CRAWLER, "web");
  await operator.click(page.locator("#top-keys-list a.key").first());
  await operator.sees("#key-words", "in the last minute");
  await operator.sees("#denials tr", "limit used up");
  await operator.click(page.getByRole("button", { name: "Ban this key" }));
  await operator.sees("#confirm", "on every node that shares this store", "until it is lifted");
  await operator.click(page.getByRole("button", { name: "Ban", exact: true }));
  await operator.sees("#key-words", "Banned by an operator, until it is lifted");
  assert.equal(await ask("web", CRAWLER), 429);
  const line = await eventually("it is logged", () => service.log.split("\n").find((line) => line.includes("banned a key")));
  assert.ok(line.includes('who="ada"') && line.includes(CRAWLER), line);
  assert.deepEqual(complaints, []);
  await context.close();
}

async function findsTheCustomer(browser, service) {
  const { operator, page, context, complaints } = await Operator.wakeUp(browser, service);
  await operator.sees("#top-keys-list tbody tr", CUSTOMER, "plan");
  await operator.click(page.locator("#top-keys-list a.key").filter({ hasText: CUSTOMER }));
  // What was asked, of which limit, and in which line that stands.
  await operator.sees("#denials tr", "plan", "limit used up", "3");
  await operator.sees("#standings tr", "plan", "5/1h", "tollway.toml:7");
  await operator.sees("#key-words", "The store does not answer");
  await operator.click(page.getByRole("button", { name: "Set a quota under plan" }));
  await operator.sees("#confirm", "on every node that shares this store");
  await page.getByLabel("Quota under plan", { exact: true }).fill("50/1h");
  await operator.click(page.getByRole("button", { name: "Set the quota" }));
  await operator.sees("#standings tr", "plan", "its own, set by");
  assert.deepEqual(complaints, []);
  await context.close();
}

async function findsTheStore(browser, service) {
  const { operator, context, complaints } = await Operator.wakeUp(browser, service);
  await operator.sees("#banner p", "The store has not answered since", "Start the store again", "Reason:");
  await operator.sees(".tile.alarm", "does not answer");
  assert.equal(operator.clicks, 0);
  assert.deepEqual(complaints, []);
  await context.close();
}

async function findsTheQueue(browser, service) {
  const { operator, page, context, complaints } = await Operator.wakeUp(browser, service);
  await operator.sees("#banner p", "No worker takes jobs from the queue mail: 3 jobs wait", "Start a worker");
  await operator.click(page.getByRole("link", { name: "Open the queue" }));
  await operator.sees("#group-list tr", "acme", "3");
  assert.deepEqual(complaints, []);
  await context.close();
}

test("four fires at once: who, why and what to do, in at most four clicks each", async () => {
  const port = await freePort();
  const stopRedis = await redis(port);
  const service = await Service.start(RULES, { TOLLWAY_STORE: `redis://127.0.0.1:${port}` });
  const browser = await launch();
  try {
    const ask = await disaster(service, stopRedis);
    await findsTheStore(browser, service);
    await findsTheCrawler(browser, service, ask);
    await findsTheCustomer(browser, service);
    await findsTheQueue(browser, service);
    for (const width of [390, 1200]) {
      const { page, context } = await Operator.wakeUp(browser, service, { width, height: 844, theme: width === 390 ? "dark" : "light" });
      await hasText(page, "#banner", "The store has not answered since");
      await assertAccessible(page, `all fires at ${width}`);
      const shots = process.env.TOLLWAY_SHOTS;
      if (shots) await page.screenshot({ path: `${shots}/fires-${width}.png` });
      await context.close();
    }
  } finally {
    await browser.close();
    await service.dispose();
    await stopRedis();
  }
});
