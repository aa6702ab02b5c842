// The dashboard as people meet it: the real service, a real browser, load on it.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { assertAccessible, decide, hasText, isLive, launch, open } from "./browser.mjs";
import { eventually, freePort, Service } from "./service.mjs";

const RULES = `
[[policies]]
name = "hour"
quota = "5/1h"
[[policies]]
name = "trial"
quota = "2/1h"
shadow = true
[[policies]]
name = "load"
quota = "1000/1h"
[[policies]]
name = "window"
algorithm = "sliding-window"
quota = "5/10m"
`;
const ADMIN = { TOLLWAY_TOKEN: "the-boss" };

let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser?.close();
});

/** Runs `body` with a service and ends it afterwards, whatever happened. */
async function serving(toml, env, body) {
  const service = await Service.start(toml, env);
  try {
    await body(service);
  } finally {
    await service.dispose();
  }
}

test("the page shows the right counts, under load too", () => serving(RULES, {}, async (service) => {
  const { page, complaints } = await open(browser, service);
  await isLive(page);
  await service.check("hour", "ada", 8);
  await service.check("trial", "ada", 4);
  // 5 + 4 allowed, 3 denied, 2 of the allowed only because of shadow mode.
  await hasText(page, "#tile-allowed-note", "9 in all");
  await hasText(page, "#tile-denied-note", "3 in all");
  await hasText(page, "#tile-shadow-note", "2 in all");
  await Promise.all(Array.from({ length: 4 }, (_, index) => service.check("load", `key-${index % 2}`, 10_000)));
  await hasText(page, "#tile-allowed-note", "2,009 in all");
  await hasText(page, "#tile-denied-note", "38,003 in all");
  await page.goto(`${service.url}/#policies`);
  const row = page.locator("#policy-list tr").filter({ has: page.getByRole("link", { name: "load", exact: true }) });
  await row.filter({ hasText: "38,000" }).waitFor();
  const metrics = (await service.request("GET", "/metrics")).text;
  assert.match(metrics, /policy="load",decision="deny"} 38000/);
  assert.deepEqual(complaints, []);
}));

test("a key made of markup and control bytes is inert", () => serving(RULES, ADMIN, async (service) => {
  const key = '<script>window.owned=1</script><img src=x onerror="window.owned=2">\u0000\u0007\u202e"\'&amp;';
  await service.check("hour", key, 9, "the-boss");
  const { page, complaints } = await open(browser, service, { token: "the-boss" });
  await isLive(page);
  const link = page.locator("a.key").filter({ hasText: "<script>window.owned=1</script>" }).first();
  await link.waitFor();
  assert.ok((await link.textContent()).includes("\\x00\\x07\\xe2\\x80\\xae"), "what cannot be seen is spelled out");
  await link.click();
  await hasText(page, "#standings tr", "0 of 5");
  assert.ok((await page.locator("#key-shown").textContent()).includes("<img src=x"));
  assert.equal(await page.evaluate(() => window.owned), undefined);
  assert.equal(await page.locator("main img, main script").count(), 0);
  assert.deepEqual(complaints, []);
}));

test("a thousand policies are filtered, sorted and paged by the service", async () => {
  const many = Array.from({ length: 1_000 }, (_, index) => `[[policies]]\nname = "p-${String(index).padStart(4, "0")}"\nquota = "3/1h"\n`).join("");
  await serving(many, {}, async (service) => {
    await service.check("p-0777", "ada", 5);
    const { page, complaints } = await open(browser, service, { hash: "#policies" });
    await isLive(page);
    const where = page.locator("section .where");
    await hasText(page, ".where", "1–25 of 1000");
    assert.equal(await page.locator("#policy-list tbody tr").count(), 25);
    await page.getByRole("button", { name: "Next" }).click();
    await hasText(page, ".where", "26–50 of 1000");
    await page.getByLabel("Filter").fill("p-07");
    await hasText(page, ".where", "1–25 of 100");
    await page.getByLabel("Sort by").selectOption("denied");
    await hasText(page, "#policy-list tbody tr:first-child", "p-0777");
    await page.getByLabel("Filter").fill("no such");
    await hasText(page, ".where", "0–0 of 0");
    await page.getByLabel("Filter").fill("p-0777");
    await page.getByRole("link", { name: "p-0777" }).click();
    await hasText(page, "#policy-detail", "3/1h");
    await page.getByRole("button", { name: "Check" }).click();
    await hasText(page, "#policy-detail .notice", "Denied");
    assert.ok(await where.isVisible());
    assert.deepEqual(complaints, []);
  });
});

test("a hundred thousand groups are paged by the service", async () => {
  const toml = `${RULES}\n[[queues]]\nname = "mail"\ngroup_limits = ["slots 1/1h"]\njobs_max = 200000\ngroups_max = 200000\n`;
  await serving(toml, {}, async (service) => {
    const total = 100_000;
    for (let from = 0; from < total; from += 1_000) {
      const jobs = Array.from({ length: 1_000 }, (_, index) => ({ group: `g-${String(from + index).padStart(6, "0")}`, payload: "x" }));
      const answer = await service.request("POST", "/v1/queues/mail/jobs/batch", { jobs });
      assert.equal(answer.status, 201, answer.text);
    }
    await service.request("POST", "/v1/queues/mail/jobs", { group: "<b>a\u0007</b>", payload: "x" });
    const { page, complaints } = await open(browser, service, { hash: "#queues" });
    await page.getByRole("link", { name: "mail" }).click();
    await hasText(page, ".where", `1–50 of ${total + 1}`);
    await hasText(page, "#group-list code", "<b>a\\x07</b>");
    await page.getByRole("button", { name: "Next" }).click();
    await hasText(page, ".where", `51–100 of ${total + 1}`);
    await hasText(page, "#group-list tbody tr:first-child", "g-000049");
    await page.getByRole("button", { name: "Previous" }).click();
    await hasText(page, ".where", `1–50 of ${total + 1}`);
    assert.deepEqual(complaints, []);
  });
});

test("an address that names nothing says so, and shows nothing of what was there before", async () => {
  const toml = `${RULES}\n[[queues]]\nname = "mail"\ngroup_limits = ["slots 1/1h"]\n`;
  await serving(toml, {}, async (service) => {
    await service.request("POST", "/v1/queues/mail/jobs", { group: "acme", payload: "x" });
    const { page, complaints } = await open(browser, service, { hash: "#queues/mail" });
    await hasText(page, "#group-list", "acme");
    await page.goto(`${service.url}/#queues/<b>absent`);
    await hasText(page, ".notice.bad", "No queue is named <b>absent.");
    assert.ok(!(await page.locator("#group-list").isVisible()));
    assert.ok(await page.getByRole("link", { name: "mail" }).isVisible());
    await page.goto(`${service.url}/#policies//hour`);
    await hasText(page, "#policy-detail", "5/1h");
    await page.goto(`${service.url}/#policies//absent`);
    await hasText(page, "#policy-detail", "No policy is named absent.");
    assert.ok(!(await page.locator("#policy-detail").textContent()).includes("5/1h"));
    assert.deepEqual(complaints, []);
  });
});

/** What has the focus: its name, and whether one can see that it has it. */
const focused = (page) => page.evaluate(() => {
  const element = document.activeElement;
  const label = element.labels?.[0]?.textContent ?? element.getAttribute("aria-label") ?? element.textContent;
  const look = getComputedStyle(element);
  return { name: label.trim(), seen: look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2 };
});

test("the keyboard reaches every control, each has a name, and one sees where one is", () => serving(RULES, ADMIN, async (service) => {
  await service.check("hour", "ada", 1, "the-boss");
  for (const [hash, ready, expected] of [
    ["#policies//hour", "#policy-detail", ["Overview", "Token", "Switch between light and dark", "Chart", "Close", "Key", "Cost", "Check", "Peek", "Filter", "Sort by", "window"]],
    ["#keys/616461", "#standings tbody tr", ["Key", "Look up", "Ban this key", "Policies", "Reset under hour", "Set a quota under window"]],
  ]) {
    const { page, context } = await open(browser, service, { hash, token: "the-boss" });
    await page.locator(ready).first().waitFor();
    await isLive(page);
    const names = new Set();
    for (let step = 0; step < 60 && !expected.every((name) => names.has(name)); step++) {
      await page.keyboard.press("Tab");
      const { name, seen } = await focused(page);
      if (await page.evaluate(() => document.activeElement === document.body)) continue;
      assert.ok(name, `${hash}: a control without a name`);
      assert.ok(seen, `${hash}: ${name} has the focus and does not show it`);
      names.add(name);
    }
    assert.deepEqual(expected.filter((name) => !names.has(name)), [], `${hash}: not reached`);
    await context.close();
  }
}));

test("a token that is not accepted any more is asked for again", () => serving(RULES, ADMIN, async (service) => {
  const { page } = await open(browser, service);
  const dialog = page.locator("#token-dialog");
  await dialog.waitFor();
  await page.locator("#token").fill("the-boss");
  await page.keyboard.press("Enter");
  await isLive(page);
  await service.stop();
  await page.locator('#link[data-state="lost"]').waitFor();
  await service.start({ TOLLWAY_TOKEN: "another" });
  await hasText(page, "#token-why", "no longer accepted");
  await page.locator("#token").fill("another");
  await page.keyboard.press("Enter");
  await isLive(page);
  assert.ok(!(await dialog.isVisible()));
}));

test("a lost service is said and its return is noticed", () => serving(RULES, {}, async (service) => {
  const { page, complaints } = await open(browser, service);
  await hasText(page, "#tile-allowed-note", "0 in all");
  await service.stop();
  await hasText(page, "#link", "connection lost");
  await hasText(page, "#banner", "The service does not answer.");
  await hasText(page, "#banner", "The figures below are from");
  assert.match(await page.evaluate(() => getComputedStyle(document.querySelector("main")).filter), /grayscale/);
  await service.start();
  await isLive(page);
  await service.check("hour", "ada", 6);
  await hasText(page, "#tile-denied-note", "1 in all");
  assert.ok(!(await page.locator("#banner").isVisible()));
  assert.deepEqual(complaints, []);
}));

test("an administrator resets, bans and sets a quota, is asked once, and is logged by name", () => serving(RULES, ADMIN, async (service) => {
  const key = "a\u0007da";
  const status = async (policy) => (await service.request("POST", "/v1/check", { policy, key }, "the-boss")).status;
  await service.check("hour", key, 6, "the-boss");
  const { page, complaints, requests } = await open(browser, service, { hash: "#keys", token: "the-boss" });
  const button = (name) => page.getByRole("button", { name, exact: true });
  await page.getByRole("textbox", { name: "Key" }).fill("a\\x07da");
  await page.keyboard.press("Enter");
  await hasText(page, "#standings tr", "0 of 5");
  await hasText(page, "#key-words", "Denied once in the last minute");
  const reset = button("Reset under hour");
  await decide(page, reset, ["a\\x07da", "under hour", "on this node", "5 of 5 units", "cannot be undone"], null);
  assert.ok(!requests.some((url) => url.endsWith("/dashboard/reset")), "what was not agreed to was not done");
  await decide(page, reset, ["under hour"], "Reset");
  await hasText(page, ".notice", "Reset under hour");
  assert.equal(await status("hour"), 200);

  await button("Set a quota under window").click();
  await page.locator("#confirm").filter({ hasText: "on this node only" }).filter({ hasText: "when this service restarts" }).waitFor();
  await page.getByLabel("Quota under window", { exact: true }).fill("1/10m");
  await page.keyboard.press("Enter");
  await hasText(page, "#standings", "its own, set by");
  assert.equal(await status("window"), 200);
  assert.equal(await status("window"), 429);

  await decide(page, button("Ban this key"), ["All policies", "on this node only", "when this service restarts", "after an hour"], "Ban");
  await hasText(page, "#key-shown", "banned");
  await hasText(page, "#key-words", "Banned by an operator, until it is lifted");
  assert.equal(await status("hour"), 429);
  await page.getByRole("link", { name: "Keys", exact: true }).click();
  const changed = page.locator("#changed-keys tr").filter({ hasText: "until lifted" }).filter({ hasText: "window: 1/10m" });
  await changed.getByRole("link", { name: "a\\x07da" }).click();
  await decide(page, button("Lift the ban"), ["ends wherever it holds"], "Lift the ban");
  await button("Ban this key").waitFor();
  assert.equal(await status("hour"), 200);
  for (const words of ["reset a key", "set a key's quota", "banned a key under all policies", "lifted the ban"]) {
    const line = await eventually(`the log says ${words}`, () => service.log.split("\n").find((line) => line.includes(words)));
    assert.ok(line.includes('who="TOLLWAY_TOKEN"') && line.includes('a\\\\x07da'), line);
  }
  assert.deepEqual(complaints, []);
}));

test("the key of an Envoy descriptor is reset and given a quota as any other", () => {
  const domain = '[[domains]]\ndomain = "edge"\n[[domains.descriptors]]\nkey = "user"\nrate_limit = { unit = "hour", requests_per_unit = 2 }\n';
  return serving(`${RULES}${domain}`, ADMIN, async (service) => {
    const body = { domain: "edge", descriptors: [{ entries: [{ key: "user", value: "ada" }] }] };
    const status = async () => (await service.request("POST", "/json", body, "the-boss")).status;
    assert.deepEqual([await status(), await status(), await status()], [200, 200, 429]);
    const hex = Buffer.from("edge\u001fuser\u001fada\u001f").toString("hex");
    const { page, complaints } = await open(browser, service, { hash: `#keys/${hex}`, token: "the-boss" });
    const row = page.locator("#standings tr").filter({ hasText: "edge" });
    await row.filter({ hasText: "0 of 2" }).waitFor();
    await decide(page, row.getByRole("button", { name: "Reset" }), ["on this node", "2 of 2 units"], "Reset");
    await row.filter({ hasText: "2 of 2" }).waitFor();
    assert.equal(await status(), 200);
    await row.getByRole("button", { name: "Set a quota" }).click();
    await page.locator("#confirm input").fill("1/1h");
    await page.keyboard.press("Enter");
    await row.filter({ hasText: "its own, set by" }).waitFor();
    assert.equal(await status(), 429);
    assert.deepEqual(complaints, []);
  });
});

test("a key that the configuration bans says so, with file and line", () => serving(`[lists]\nbanned = ["evil-*"]\n${RULES}`, ADMIN, async (service) => {
  await service.check("hour", "evil-1", 3, "the-boss");
  const { page, complaints } = await open(browser, service, { token: "the-boss" });
  const row = page.locator("#top-keys-list tr").filter({ hasText: "evil-1" });
  await row.filter({ hasText: "banned" }).waitFor();
  await row.getByRole("link", { name: "evil-1" }).click();
  await hasText(page, "#key-words", "Banned by the configuration");
  await hasText(page, "#key-words", "(evil-*) in ");
  await hasText(page, "#key-words", "tollway.toml:2");
  await hasText(page, "#key-actions", "Only a change of the configuration lets this key in.");
  assert.equal(await page.getByRole("button", { name: "Ban this key" }).count(), 0);
  assert.deepEqual(complaints, []);
}));

test("a key that asks for more than is left is shown as denied, though one unit is there", () => serving(RULES, ADMIN, async (service) => {
  const ask = (cost) => service.request("POST", "/v1/check", { policy: "hour", key: "ada", cost }, "the-boss");
  await ask(2);
  assert.equal((await ask(4)).status, 429);
  const { page, complaints } = await open(browser, service, { token: "the-boss" });
  await page.locator("#top-keys-list a.key").filter({ hasText: "ada" }).click();
  const row = page.locator("#standings tr").filter({ hasText: "hour" });
  await row.filter({ hasText: "denied at cost 4" }).waitFor();
  await row.filter({ hasText: "3 of 5" }).waitFor();
  await hasText(page, "#key-words", "Under hour, it last asked for 4 units and 3 of 5 are left. A request of cost 4 is allowed in");
  await hasText(page, "#denials tr", "limit used up");
  assert.match(await row.locator("svg").getAttribute("aria-label"), /^3 now, .*, 5 in /);
  await row.filter({ hasText: "tollway.toml:2" }).waitFor();
  assert.deepEqual(complaints, []);
}));

test("keys are sorted by denied, or by allowed", () => serving(RULES, ADMIN, async (service) => {
  await service.check("hour", "rude", 30, "the-boss");
  await service.check("load", "busy", 60, "the-boss");
  const { page, complaints } = await open(browser, service, { token: "the-boss" });
  const first = page.locator("#top-keys-list tbody tr").first();
  await first.filter({ hasText: "rude" }).filter({ hasText: "limit used up" }).filter({ hasText: "hour" }).waitFor();
  await page.getByLabel("Sort by").selectOption("allowed");
  await first.filter({ hasText: "busy" }).filter({ hasText: "load" }).waitFor();
  assert.deepEqual(complaints, []);
}));

test("the header and what is wrong stay in view", () => serving(RULES, ADMIN, async (service) => {
  for (let key = 0; key < 12; key++) await service.check("hour", `user-${key}`, 7, "the-boss");
  const { page } = await open(browser, service, { width: 390, height: 700, token: "the-boss" });
  await page.locator("#top-keys-list tbody tr").nth(9).waitFor();
  await service.stop();
  await hasText(page, "#banner", "The service does not answer.");
  await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
  await eventually("it is scrolled", () => page.evaluate(() => window.scrollY > 300));
  for (const part of ["header", "#banner"]) {
    const box = await page.locator(part).boundingBox();
    assert.ok(box.y >= 0 && box.y + box.height <= 700, `${part}: ${JSON.stringify(box)}`);
  }
}));

test("nothing is changed without a token, even by a service that is open", () => serving(RULES, {}, async (service) => {
  for (const [path, body] of [
    ["/dashboard/ban", { key_hex: "61", banned: true }],
    ["/dashboard/reset", { key_hex: "61", policy: "hour" }],
    ["/dashboard/quota", { key_hex: "61", policy: "hour", quota: "1/1h" }],
  ]) {
    assert.equal((await service.request("POST", path, body)).status, 403, path);
  }
  const { page } = await open(browser, service, { hash: "#keys/616461" });
  await hasText(page, "#key-actions", "Changes need a token");
  assert.equal(await page.getByRole("button", { name: "Ban" }).count(), 0);
}));

test("whoever may only read sees no keys and changes nothing", async () => {
  const toml = `tokens = [{ token = "reader", role = "read" }, { token = "boss", role = "admin" }]\n${RULES}`;
  await serving(toml, {}, async (service) => {
    assert.equal((await service.request("GET", "/dashboard/policies")).status, 401);
    assert.equal((await service.request("POST", "/dashboard/ban", { key_hex: "61", banned: true }, "reader")).status, 403);
    const { page } = await open(browser, service, { token: "reader" });
    await isLive(page);
    await hasText(page, ".note", "Only tokens with the role admin may see keys.");
    assert.equal(await page.locator("a.key").count(), 0);
  });
});

test("what keys of a durable policy used is listed, looked up by key, and exported", async () => {
  const rules = "[[policies]]\nname = \"plan\"\nquota = \"100000/year\"\ndurable = true\n[[policies]]\nname = \"api\"\nquota = \"5/1h\"\n";
  const service = new Service(await freePort(), rules, ADMIN);
  service.args = ["--durable-file", join(service.folder, "counts")];
  await service.start();
  try {
    const check = (key, cost) => service.request("POST", "/v1/check", { policy: "plan", key, cost }, "the-boss");
    for (let number = 0; number < 30; number++) await check(`customer-${String(number).padStart(2, "0")}`, number + 1);
    await check("=1+1,\"x\"", 1234);
    const { page, complaints } = await open(browser, service, { token: "the-boss", hash: "#policies//plan" });
    await isLive(page);
    const rows = page.locator("#usage-list tbody tr");
    await rows.filter({ hasText: "=1+1" }).filter({ hasText: "1,234" }).waitFor();
    assert.equal(await rows.count(), 25);
    await assertAccessible(page, "usage");
    if (process.env.TOLLWAY_SHOTS) await page.screenshot({ path: `${process.env.TOLLWAY_SHOTS}/usage.png`, fullPage: true });
    await page.locator("#usage").getByRole("button", { name: "Next" }).click();
    await rows.filter({ hasText: "customer-29" }).waitFor();
    assert.equal(await rows.count(), 6);
    const saved = async (name) => {
      const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name }).click()]);
      return [download.suggestedFilename(), readFileSync(await download.path(), "utf8").trimEnd().split("\n")];
    };
    const [csvName, csv] = await saved("Export CSV");
    assert.deepEqual([csvName, csv.length, csv[0]], ["usage-plan.csv", 32, "policy,key,key_hex,start,end,units"]);
    assert.match(csv[1], /^plan,"=1\+1,""x""",[0-9a-f]+,20\d\d-01-01T00:00:00Z,20\d\d-01-01T00:00:00Z,1234$/);
    const [, lines] = await saved("Export JSON lines");
    assert.equal(lines.map((line) => JSON.parse(line).units).reduce((sum, units) => sum + units), 465 + 1234);
    await page.locator("#usage-key").fill("customer-07");
    await rows.filter({ hasText: "customer-07" }).waitFor();
    await eventually("one row", async () => await rows.count() === 1);
    await page.goto(`${service.url}/#policies//api`);
    await hasText(page, "#policy-detail h2", "api");
    assert.equal(await page.locator("#usage").count(), 0, "not of a policy that is not durable");
    assert.deepEqual(complaints, []);
  } finally {
    await service.dispose();
  }
});

test("the page is small, comes from one place and is not sent twice", () => serving(RULES, {}, async (service) => {
  const files = ["/", "/dashboard/app.js", "/dashboard/app.css", "/dashboard/icon.svg"];
  let bytes = 0;
  for (const path of files) {
    const answer = await fetch(`${service.url}${path}`, { headers: { "accept-encoding": "gzip" } });
    bytes += Number(answer.headers.get("content-length"));
    assert.match(answer.headers.get("content-security-policy"), /default-src 'none'/);
    const again = await fetch(`${service.url}${path}`, { headers: { "if-none-match": answer.headers.get("etag") } });
    assert.equal(again.status, 304);
  }
  assert.ok(bytes < 150_000, `${bytes} bytes`);
  const { page, requests } = await open(browser, service);
  await isLive(page);
  const paint = await page.evaluate(() => performance.getEntriesByType("paint").length);
  assert.ok(paint > 0);
  const chain = requests.map((url) => new URL(url).pathname).filter((path) => files.includes(path));
  assert.deepEqual([...new Set(chain)].sort().filter((path) => path !== "/dashboard/icon.svg"), ["/", "/dashboard/app.css", "/dashboard/app.js"]);
}));

/** Every view, and what is there once it is drawn. Queues with something in them have a test of their own. */
const VIEWS = [
  ["overview", "#overview", "#top-keys-list tbody tr"],
  ["policies", "#policies", "#policy-list tbody tr"],
  ["policy", "#policies//hour", "#policy-detail dt"],
  ["keys", "#keys", "#keys-top-list tbody tr"],
  ["key", `#keys/${Buffer.from("user-1").toString("hex")}`, "#standings tbody tr"],
  ["no-queues", "#queues", "main .notice:not(:empty)"],
  ["no-upstream", "#upstream", "main .notice:not(:empty)"],
];

test("every view can be used by keyboard and read aloud, at every width, in both themes", () => serving(RULES, ADMIN, async (service) => {
  const shots = process.env.TOLLWAY_SHOTS;
  let busy = true;
  const load = (async () => {
    for (let round = 0; busy; round++) {
      for (let key = 0; key < 12; key++) await service.check("load", `customer-${key}`, 1 + ((round + 1) * (key + 3)) % 29, "the-boss");
      await service.check("hour", `user-${round % 7}`, 3, "the-boss");
      await service.check("trial", `user-${round % 3}`, 2, "the-boss");
    }
  })();
  try {
    for (const theme of ["light", "dark"]) {
      // Colours do not change the layout: without pictures to take, two widths in the dark are enough.
      for (const width of theme === "light" || shots ? [390, 900, 1600] : [390, 900]) {
        const { page, context, complaints } = await open(browser, service, { width, theme, token: "the-boss" });
        await isLive(page);
        for (const [name, hash, ready] of VIEWS) {
          await page.goto(`${service.url}/${hash}`);
          await page.locator(ready).first().waitFor();
          if (hash === "#overview") await eventually("there are figures", async () => (await page.locator("#tile-allowed").textContent()) !== "–");
          await assertAccessible(page, `${hash} ${theme} ${width}`);
          if (shots) await page.screenshot({ path: `${shots}/${name}-${width}-${theme}.png`, fullPage: true });
        }
        assert.deepEqual(complaints, []);
        await context.close();
      }
    }
    const { page } = await open(browser, service, { token: "the-boss" });
    await isLive(page);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
    for (let step = 0; step < 3; step++) await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await hasText(page, "h2", "Policies");
  } finally {
    busy = false;
    await load;
  }
}));
