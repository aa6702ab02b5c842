// The page while the shared store comes and goes, and while the configuration on disk is wrong.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { hasText, isLive, launch, open } from "./browser.mjs";
import { eventually, freePort, redis, Service } from "./service.mjs";

const RULES = `
[[policies]]
name = "hour"
quota = "5/1h"
on_store_error = "allow"
`;

let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser?.close();
});

test("a store that is gone is said, and its return is noticed", async () => {
  const port = await freePort();
  let stopRedis = await redis(port);
  const service = await Service.start(RULES, { TOLLWAY_STORE: `redis://127.0.0.1:${port}` });
  try {
    const { page, complaints } = await open(browser, service);
    await isLive(page);
    await service.check("hour", "ada", 7);
    await hasText(page, "#tile-denied-note", "2 in all");
    await hasText(page, "#tile-store-note", "answers");
    assert.ok(!(await page.locator("#banner").isVisible()));
    await stopRedis();
    // Somebody goes on asking: without questions there is nothing that could be degraded.
    const banner = page.locator("#banner");
    await eventually("it is said", async () => {
      await service.check("hour", "ada", 1);
      return (await banner.isVisible()) && (await banner.textContent()).includes("The store has not answered since");
    });
    await hasText(page, "#tile-store-note", "does not answer");
    assert.equal(await page.locator(".tile.alarm").count(), 1);
    stopRedis = await redis(port);
    await eventually("its return is noticed", async () => {
      await service.check("hour", "bob", 1);
      return !(await banner.isVisible());
    });
    await hasText(page, "#tile-store-note", "answers");
    assert.equal(await page.locator(".tile.alarm").count(), 0);
    assert.deepEqual(complaints, []);
  } finally {
    await service.dispose();
    await stopRedis();
  }
});

test("a wrong file is said with what is wrong, and forgotten when it is right again", async () => {
  const service = await Service.start(RULES, {});
  try {
    const { page } = await open(browser, service);
    await isLive(page);
    const file = join(service.folder, "tollway.toml");
    const right = readFileSync(file, "utf8");
    writeFileSync(file, `${right}\nqota = "<b>1</b>"\n`);
    await hasText(page, "#banner", "The configuration on disk is not in force.");
    await hasText(page, "#banner", "Correct the file");
    await hasText(page, "#banner", "qota");
    writeFileSync(file, right);
    await page.locator("#banner").waitFor({ state: "hidden" });
  } finally {
    await service.dispose();
  }
});
