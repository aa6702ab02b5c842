// The proxy's own page, in front of an upstream that limits by the hour.

import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { assertAccessible, hasText, isLive, launch, open } from "./browser.mjs";
import { LimitedUpstream } from "./limited_upstream.mjs";
import { eventually } from "./service.mjs";

let browser;
let upstream;

before(async () => {
  browser = await launch();
  upstream = await LimitedUpstream.start();
});

after(async () => {
  await browser?.close();
  await upstream?.stop();
});

const look = (options = {}) => open(browser, { url: `http://${upstream.admin}` }, { hash: "admin/", ...options });
const row = (page, channel) => page.locator("#buckets tbody tr").filter({ hasText: `owned=1> ${channel}` });
const shot = (page, name) => process.env.TOLLWAY_SHOTS
  ? page.screenshot({ path: join(process.env.TOLLWAY_SHOTS, `${name}.png`), fullPage: true }) : null;

test("the page shows buckets, why they wait, by which routes, and what changed, and keeps up by itself", async () => {
  const { page, complaints } = await look();
  await isLive(page);
  await hasText(page, "#buckets", "No bucket yet.");
  await hasText(page, "#target", "profile discord");
  for (const channel of ["1", "2", "2"]) assert.equal((await upstream.ask(channel)).status, 200);
  for (let sent = 0; sent < 7; sent++) upstream.ask("1").catch(() => null);
  await row(page, 1).filter({ hasText: "0 of 5" }).filter({ hasText: "the window is spent, for" }).waitFor();
  await row(page, 1).filter({ hasText: "GET /channels/:major/messages" }).waitFor();
  await row(page, 2).filter({ hasText: "3 of 5" }).waitFor();
  await hasText(page, "#figures", "Waiting3");
  await hasText(page, "#changes", "bucket learned");
  await hasText(page, "#changes", "5 requests in");
  const first = await page.locator("#buckets tbody tr").first().textContent();
  assert.match(first, /owned=1> 1/, "who waits stands first");
  assert.equal(await page.locator("main img").count(), 0);
  assert.equal(await page.evaluate(() => window.owned), undefined);
  assert.ok(!(await page.locator("body").textContent()).includes("secret"), "credentials are not shown");
  assert.deepEqual(complaints, []);
});

for (const [width, height] of [[1200, 900], [390, 844]]) {
  for (const theme of ["light", "dark"]) {
    test(`it can be read at ${width} px in a ${theme} room`, async () => {
      const { page, complaints } = await look({ width, height, theme });
      await isLive(page);
      await row(page, 1).waitFor();
      await shot(page, `proxy-${width}-${theme}`);
      await assertAccessible(page, `the proxy's page, ${width} ${theme}`);
      assert.deepEqual(complaints, []);
    });
  }
}

test("many buckets are paged", async () => {
  for (let channel = 3; channel <= 104; channel++) await upstream.ask(String(channel));
  const { page } = await look();
  const rows = page.locator("#buckets tbody tr");
  const [back, on] = ["First", "Next"].map((name) => page.getByRole("button", { name }));
  await eventually("the first page is full", async () => (await rows.count()) === 100);
  assert.ok(await back.isDisabled());
  await on.click();
  await eventually("the second has the rest", async () => (await rows.count()) === 4);
  await back.click();
  await eventually("the first again", async () => (await rows.count()) === 100);
});

test("an upstream that is gone is said, and a proxy that is gone too", async () => {
  const { page } = await look();
  await isLive(page);
  await upstream.fake.stop();
  const dead = await fetch(`http://${upstream.listen}/api/v10/gateway`, { headers: { "x-tollway-deadline": "0.2" } });
  assert.ok(dead.status >= 500);
  await page.locator("#figures .alarm").filter({ hasText: "Upstream" }).waitFor();
  await hasText(page, "#changes", "upstream down");
  await upstream.proxy.stop();
  await hasText(page, "#link", "no answer");
});

test("where a token is set the page asks for it and shows nothing before", async () => {
  await upstream.startProxy({ TOLLWAY_ADMIN_TOKEN: "s3same" });
  const { page, complaints } = await look();
  await hasText(page, "#link", "needs the admin token");
  assert.equal(await page.locator("#figures div").count(), 0);
  for (const [token, state] of [["wrong", "token refused"], ["s3same", "live"]]) {
    await page.getByLabel("Admin token").fill(token);
    await page.getByRole("button", { name: "Use token" }).click();
    await hasText(page, "#link", state);
  }
  await page.locator("#figures div").first().waitFor();
  assert.deepEqual(complaints, []);
});
