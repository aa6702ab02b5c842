// The Upstream view against a running proxy, in front of an upstream that limits by the hour.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertAccessible, hasText, isLive, launch, open } from "./browser.mjs";
import { LimitedUpstream } from "./limited_upstream.mjs";
import { eventually, Service } from "./service.mjs";

let browser;
let upstream;
let service;

before(async () => {
  browser = await launch();
  upstream = await LimitedUpstream.start();
  service = await Service.start('[[policies]]\nname = "hour"\nquota = "5/1h"\n', { TOLLWAY_PROXY_ADMIN: upstream.admin });
});

after(async () => {
  await browser?.close();
  await service?.stop();
  service?.dispose();
  await upstream?.stop();
});

const row = (page, name) => page.locator("#bucket-list tbody tr").filter({ has: page.getByText(new RegExp(`${name}$`)) });

test("buckets show what remains and who waits, page by page, and do nothing else", async () => {
  const { page, complaints } = await open(browser, service, { hash: "#upstream" });
  await isLive(page);
  await hasText(page, "#bucket-list", "No bucket yet.");
  for (const channel of ["1", "2", "2"]) assert.equal((await upstream.ask(channel)).status, 200);
  const waiting = [];
  for (let sent = 0; sent < 7; sent++) waiting.push(upstream.ask("1").catch(() => null));
  await row(page, " 1").filter({ hasText: "0 of 5" }).waitFor();
  await row(page, " 2").filter({ hasText: "3 of 5" }).waitFor();
  const cells = () => row(page, " 1").locator("td, th").allTextContents();
  await eventually("three wait", async () => (await cells())[3] === "3");
  assert.match((await cells())[2], /^(59|60) min|^1 h/, "when the hour ends");
  assert.match((await cells())[4], /^window spent, /, "why they wait");
  assert.match((await cells())[0], /GET \/channels\/:major\/messages$/, "and by which route it is known");

  for (let channel = 3; channel <= 62; channel++) await upstream.ask(String(channel));
  const rows = page.locator("#bucket-list tbody tr");
  const [back, on] = ["Previous", "Next"].map((name) => page.getByRole("button", { name }));
  await eventually("the first page is full", async () => (await rows.count()) === 50);
  const first = await rows.first().locator("code").first().textContent();
  assert.ok(await back.isDisabled());
  await on.click();
  await eventually("the second has the rest", async () => (await rows.count()) === 12);
  assert.ok(await on.isDisabled());
  await back.click();
  await eventually("the first again", async () => (await rows.first().locator("code").first().textContent()) === first);
  assert.equal(await rows.count(), 50);
  assert.match(first, /^<img src=x onerror=window.owned=1> /);
  assert.equal(await page.locator("main img").count(), 0);
  assert.equal(await page.evaluate(() => window.owned), undefined);
  assert.ok(!(await page.locator("main").textContent()).includes("secret"), "credentials are not shown");
  assert.deepEqual(complaints, []);
});

test("refusals, the last changes and the upstream's state are those of the proxy's own page", async () => {
  const { page, complaints } = await open(browser, service, { hash: "#upstream" });
  await hasText(page, "#proxy-facts", `up${upstream.fake.url}`);
  await hasText(page, "#proxy-facts", "Profilediscord");
  await hasText(page, "#proxy-facts", "Storein memory");
  await hasText(page, "#proxy-changes", "bucket learned");
  await hasText(page, "#proxy-changes", "5 requests in");
  const refused = await fetch(`http://${upstream.listen}/api/v10/channels/1/messages`,
    { headers: { authorization: "Bot secret", "x-tollway-deadline": "0" } });
  assert.equal(refused.status, 429);
  await hasText(page, "#proxy-facts", "deadline 1");
  assert.equal(await page.evaluate(() => window.owned), undefined);
  assert.ok(!(await page.locator("main").textContent()).includes("secret"), "credentials are not shown");
  assert.deepEqual(complaints, []);
});

for (const width of [390, 1200]) {
  for (const theme of ["light", "dark"]) {
    test(`buckets can be read at ${width} px in a ${theme} room`, async () => {
      const { page, context, complaints } = await open(browser, service, { hash: "#upstream", width, theme });
      await isLive(page);
      await row(page, " 1").waitFor();
      await assertAccessible(page, `#upstream ${width} ${theme}`);
      const shots = process.env.TOLLWAY_SHOTS;
      if (shots) await page.screenshot({ path: `${shots}/upstream-${width}-${theme}.png` });
      assert.deepEqual(complaints, []);
      await context.close();
    });
  }
}

test("a proxy that is gone is said, and its return is noticed", async () => {
  const { page } = await open(browser, service, { hash: "#upstream" });
  await page.locator("#bucket-list tbody tr").first().waitFor();
  await upstream.proxy.stop();
  await page.locator(".notice.bad").filter({ hasText: "proxy" }).waitFor({ timeout: 30_000 });
  await upstream.startProxy();
  await hasText(page, "#bucket-list", "No bucket yet.");
  assert.ok(!(await page.locator("section .notice.bad").isVisible()));
});
