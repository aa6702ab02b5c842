// A headless Chromium, and pages that must neither complain nor ask anybody else.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const face = process.env.TOLLWAY_FACE ?? fileURLToPath(new URL("../../../../target/face", import.meta.url));
const require = createRequire(join(face, "package.json"));
const { chromium } = require("playwright-core");

const axe = require.resolve("axe-core");

export function launch() {
  return chromium.launch({ executablePath: process.env.TOLLWAY_CHROMIUM ?? "/usr/bin/chromium-headless-shell", args: ["--no-sandbox"] });
}

/** A page at the dashboard of `service`; `complaints` gathers what must not happen. */
export async function open(browser, service, { hash = "", width = 1200, height = 900, theme = "light", token } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme });
  if (token) await context.addInitScript((text) => sessionStorage.setItem("tollway-token", text), token);
  const page = await context.newPage();
  const complaints = [];
  const requests = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("dialog", (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    if (message.text().includes("Content Security Policy")) complaints.push(message.text());
  });
  page.on("request", (request) => {
    requests.push(request.url());
    if (!request.url().startsWith(service.url)) complaints.push(`asked elsewhere: ${request.url()}`);
  });
  await page.goto(`${service.url}/${hash}`);
  return { page, context, complaints, requests };
}

export const isLive = (page) => page.locator('#link[data-state="live"]').waitFor();

/** Clicks, reads what is asked, and agrees by the button `agree`, or leaves things as they are. */
export async function decide(page, button, expected, agree) {
  await button.click();
  const dialog = page.locator("#confirm");
  await dialog.waitFor();
  const asked = await dialog.textContent();
  for (const words of expected) assert.ok(asked.includes(words), `${words} in: ${asked}`);
  await dialog.getByRole("button", { name: agree ?? "Leave as it is", exact: true }).click();
  await dialog.waitFor({ state: "hidden" });
}

/** Nobody who cannot see the page well, or uses it by keyboard alone, is kept from it. */
export async function assertAccessible(page, what) {
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(overflow <= 0, `${what} is ${overflow} px too wide`);
  await page.evaluate(readFileSync(axe, "utf8"));
  const found = await page.evaluate(() => window.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"] }));
  assert.deepEqual(found.violations.map((one) => [one.id, one.nodes.map((node) => node.html)]), [], what);
}

/** Waits until the element has this text. */
export async function hasText(page, selector, text) {
  await page.locator(selector).filter({ hasText: text }).first().waitFor({ timeout: 30_000 });
}
