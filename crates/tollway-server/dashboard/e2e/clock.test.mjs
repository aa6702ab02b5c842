// Banners about time, of a real service whose time is stepped: by libfaketime (Debian's package),
// which stands between the process and the C library and reads from a file how far off the time is.

import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { hasText, launch, open } from "./browser.mjs";
import { freePort, Service } from "./service.mjs";

const RULES = `
[[policies]]
name = "hour"
quota = "5/1h"
`;
const library = readdirSync("/usr/lib").map((name) => join("/usr/lib", name, "faketime/libfaketime.so.1")).find((file) => existsSync(file));
const missing = "libfaketime is missing: run scripts/install-service-tests";
if (!library) assert.ok(!process.env.TOLLWAY_TOOLS, missing);
const options = { skip: library ? false : missing };

let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser?.close();
});

/** A service that keeps a snapshot, a page at it, and what steps its time. */
async function withItsOwnTime(more, run) {
  const service = new Service(await freePort(), RULES);
  const states = join(service.folder, "states");
  const time = join(service.folder, "time");
  // Put in place as a whole: it is read all the time.
  const step = (offset) => {
    writeFileSync(`${time}.new`, offset);
    renameSync(`${time}.new`, time);
  };
  mkdirSync(states);
  step("+0");
  service.args = ["--snapshot", join(states, "snapshot")];
  try {
    await service.start({ LD_PRELOAD: library, FAKETIME_TIMESTAMP_FILE: time, FAKETIME_NO_CACHE: "1", NO_FAKE_STAT: "1", ...more });
    const { page, complaints } = await open(browser, service);
    // A jump is one between two looks, so the first has to be over: it tells what was counted.
    await service.check("hour", "ada", 7);
    await hasText(page, "#tile-denied-note", "2 in all");
    assert.ok(!(await page.locator("#banner").isVisible()));
    await run({ page, states, step });
    assert.deepEqual(complaints, []);
  } finally {
    await service.dispose();
  }
}

test("a time that jumps, a snapshot that is old by it, and a clock that waits are told", options, () => withItsOwnTime({ FAKETIME_DONT_FAKE_MONOTONIC: "1" }, async ({ page, step }) => {
  step("+3600");
  await hasText(page, "#banner p", "The time of this system was set forward by 1 h.");
  await hasText(page, "#banner p", "The last snapshot is 1 h");
  step("+1800");
  await hasText(page, "#banner p", "ahead of the time of its system.");
}));

test("a snapshot that cannot be written is told with the reason", options, () => withItsOwnTime({}, async ({ page, states, step }) => {
  rmSync(states, { recursive: true });
  // A minute passes at once, and a snapshot is due.
  step("+61");
  await hasText(page, "#banner p", "The last snapshot is 1 min");
  await hasText(page, "#banner p", "No such file or directory");
}));
