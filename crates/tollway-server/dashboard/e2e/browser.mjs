// A headless Chromium, and pages that must neither complain nor ask anybody else.

import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const face = process.env.TOLLWAY_FACE ?? fileURLToPath(new URL("../../../../target/face", import.meta.url));
const require = createRequire(join(face, "package.json"));
const { chromium } = require("playwright-core");

export const axe = require.resolve("axe-core");

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

/** Waits until the element has this text. */
export async function hasText(page, selector, text) {
  await page.locator(selector).filter({ hasText: text }).first().waitFor({ timeout: 30_000 });
}
