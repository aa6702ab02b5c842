// The Upstream view against a running proxy, in front of an upstream that limits by the hour.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { hasText, isLive, launch, open } from "./browser.mjs";
import { eventually, freePort, Program, Service } from "./service.mjs";

/** Discord's fields, with windows that do not end while somebody looks, and a name that is markup. */
const UPSTREAM = `
fields = [
    ["X-RateLimit-Limit", "limit"],
    ["X-RateLimit-Remaining", "remaining"],
    ["X-RateLimit-Reset", "reset-epoch-decimal"],
    ["X-RateLimit-Reset-After", "reset-after-decimal"],
    ["X-RateLimit-Bucket", "=<img src=x onerror=window.owned=1>"],
]
[buckets]
history = { limit = 5, per = "1h", window = "fixed" }
[[routes]]
method = "GET"
path = "/channels/{+channel}/messages"
bucket = "history"
`;

let browser;
let folder;
let fake;
let proxy;
let service;
const [listen, admin] = [await freePort(), await freePort()];
const hurry = new AbortController();

const startProxy = () => Program.start(["proxy", "--profile", "discord", "--upstream", fake.url, "--patience", "2h",
  "--listen", `127.0.0.1:${listen}`, "--admin", `127.0.0.1:${admin}`]);

/** Asks the upstream through the proxy; a wait ends with the tests. */
const ask = (channel) => fetch(`http://127.0.0.1:${listen}/api/v10/channels/${channel}/messages`,
  { headers: { authorization: "Bot secret" }, signal: hurry.signal });

before(async () => {
  browser = await launch();
  folder = mkdtempSync(join(tmpdir(), "tollway-e2e-"));
  writeFileSync(join(folder, "upstream.toml"), UPSTREAM);
  fake = await Program.start(["fake-upstream", "--spec", join(folder, "upstream.toml")]);
  proxy = await startProxy();
  service = await Service.start('[[policies]]\nname = "hour"\nquota = "5/1h"\n', { TOLLWAY_PROXY_ADMIN: `127.0.0.1:${admin}` });
});

after(async () => {
  hurry.abort();
  await browser?.close();
  for (const program of [service, proxy, fake]) await program?.stop();
  service?.dispose();
  rmSync(folder, { recursive: true, force: true });
});

const row = (page, name) => page.locator("#bucket-list tbody tr").filter({ has: page.getByText(new RegExp(`${name}$`)) });

test("buckets show what remains and who waits, page by page, and do nothing else", async () => {
  const { page, complaints } = await open(browser, service, { hash: "#upstream" });
  await isLive(page);
  await hasText(page, "#bucket-list", "No bucket yet.");
  for (const channel of ["1", "2", "2"]) assert.equal((await ask(channel)).status, 200);
  const waiting = [];
  for (let sent = 0; sent < 7; sent++) waiting.push(ask("1").catch(() => null));
  await row(page, " 1").filter({ hasText: "0 of 5" }).waitFor();
  await row(page, " 2").filter({ hasText: "3 of 5" }).waitFor();
  const cells = () => row(page, " 1").locator("td, th").allTextContents();
  await eventually("three wait", async () => (await cells())[3] === "3");
  assert.match((await cells())[2], /^(59|60) min|^1 h/, "when the hour ends");
  assert.match((await cells())[4], /^window spent, /, "why they wait");
  assert.match((await cells())[0], /GET \/channels\/:major\/messages$/, "and by which route it is known");

  for (let channel = 3; channel <= 62; channel++) await ask(String(channel));
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

test("a proxy that is gone is said, and its return is noticed", async () => {
  const { page } = await open(browser, service, { hash: "#upstream" });
  await page.locator("#bucket-list tbody tr").first().waitFor();
  await proxy.stop();
  await page.locator(".notice.bad").filter({ hasText: "proxy" }).waitFor({ timeout: 30_000 });
  proxy = await startProxy();
  await hasText(page, "#bucket-list", "No bucket yet.");
  assert.ok(!(await page.locator("section .notice.bad").isVisible()));
});
