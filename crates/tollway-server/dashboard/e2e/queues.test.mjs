// Queues on the page: what operators see of them, and what they change.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertAccessible, decide, hasText, isLive, launch, open } from "./browser.mjs";
import { eventually, Service } from "./service.mjs";

const QUEUES = `
tokens = [{ token = "the-boss", role = "admin", name = "ada" }, { token = "the-guest", role = "read" }]
[[queues]]
name = "mail"
group_limits = ["slots 1/1h"]
attempts = 1
[[queues]]
name = "roles"
group_limits = ["slots 10/10s"]
[[queues.recurring]]
name = "nightly"
cron = "30 2 * * *"
zone = "Europe/Berlin"
`;
const BOSS = { token: "the-boss" };

let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser?.close();
});

/** Asks the service as an operator. */
async function ask(service, verb, path, body) {
  const answer = await service.request(verb, `/v1/queues/${path}`, body, "the-boss");
  assert.ok(answer.status < 300, `${verb} ${path}: ${answer.status} ${answer.text}`);
  return JSON.parse(answer.text);
}

/** Runs `body` with a service that has jobs which wait, run and have failed. */
async function serving(body) {
  const service = await Service.start(QUEUES);
  try {
    for (const group of ["acme", "<b>umbrella\u0007</b>", "initech"]) {
      for (let job = 0; job < 3; job++) await ask(service, "POST", "mail/jobs", { group, payload: { to: `${group}-${job}` } });
    }
    const { leases } = await ask(service, "POST", "mail/lease", { max: 3, worker: "w1" });
    assert.equal(leases.length, 3);
    await ask(service, "POST", "mail/fail", { token: leases[0].token, reason: "the target answered 404 Not Found; <i>gone\u202e</i>" });
    await ask(service, "POST", "mail/ack", { token: leases[1].token, result: "sent" });
    await ask(service, "POST", "mail/progress", { token: leases[2].token, done: 3, total: 7 });
    await body(service, leases.map((lease) => lease.id));
  } finally {
    await service.dispose();
  }
}

test("a service with queues alone opens on them, and its overview tells of them", () => serving(async (service) => {
  const { page, complaints } = await open(browser, service, BOSS);
  await hasText(page, "main h2", "Queues");
  await hasText(page, "#queue-list", "mail");
  await page.getByRole("link", { name: "Overview" }).click();
  await page.locator("#tile-waiting").filter({ hasText: "6" }).waitFor();
  await page.locator("#tile-running").filter({ hasText: "1" }).waitFor();
  await page.locator("#tile-dead").filter({ hasText: "1" }).waitFor();
  assert.equal(await page.locator("#tile-allowed").count(), 0);
  assert.ok(!(await page.locator("#decisions-chart").isVisible()));
  for (const figure of await page.locator(".tile strong").allTextContents()) assert.notEqual(figure, "–");
  assert.deepEqual(complaints, []);
}));

test("a queue shows its depth and throughput, its dead letters with their reasons, and a job", () => serving(async (service, [dead, done, running]) => {
  const { page, complaints } = await open(browser, service, { hash: "#queues/mail", ...BOSS });
  await eventually("the chart tells the depth", async () => (await page.locator("#depth-chart").getAttribute("aria-label"))?.includes("waiting 6, running 1"));
  await page.locator("#depth-chart canvas").waitFor();
  await page.locator("#throughput-chart canvas").waitFor();
  await hasText(page, "#dead-list", "404 Not Found; <i>gone\\xe2\\x80\\xae</i>");
  await page.getByRole("link", { name: `Job ${dead}` }).click();
  await hasText(page, "#job-facts", "404 Not Found");
  await hasText(page, "#job-facts", "1, of which 1 failed");
  await hasText(page, "#job-history", "Attempt 1 failed after");
  await hasText(page, "#job-history", "<i>gone\\xe2\\x80\\xae</i>");
  await hasText(page, "#job-history", "Became a dead letter");
  await page.getByLabel("Number").fill(String(running));
  await page.getByRole("button", { name: "Look up" }).click();
  await hasText(page, "#job-facts", "3 of 7");
  await hasText(page, "#job-facts", "w1");
  await hasText(page, "#job-history", "Attempt 1 began");
  const row = page.locator("#running-list tr").filter({ hasText: "3 of 7" });
  await hasText(row, "td", "w1");
  await row.getByRole("link", { name: `Job ${running}` }).waitFor();
  await page.goto(`${service.url}/#queues/mail/${done}`);
  await hasText(page, "#job-facts", "sent");
  await page.goto(`${service.url}/#queues/mail/424242`);
  await hasText(page, ".notice", "424242");
  assert.deepEqual(complaints, []);
}));

test("each change is asked about once, says what it reaches, and is logged with a name", () => serving(async (service, [dead]) => {
  const { page, complaints, requests } = await open(browser, service, { hash: "#queues/mail", ...BOSS });
  const button = (name) => page.getByRole("button", { name, exact: true });
  const sent = (end) => requests.filter((url) => url.endsWith(end)).length;
  await decide(page, button("Pause the queue"), ["the queue mail", "6 jobs wait", "1 job that runs goes on"], null);
  assert.equal(sent("/pause"), 0, "what was not agreed to was not done");
  await decide(page, button("Pause the queue"), ["the queue mail"], "Pause");
  await hasText(page, "main", "Paused: the queue mail.");
  assert.equal(sent("/pause"), 1);
  assert.equal((await ask(service, "GET", "mail")).paused, true);
  await decide(page, button("Resume the queue"), ["the queue mail"], "Resume");
  await decide(page, button("Pause the group acme"), ["the group acme of the queue mail"], "Pause");
  await button("Resume the group acme").waitFor();

  await button("Limits of the group initech").click();
  await page.getByLabel("Limits", { exact: true }).fill("concurrent 0");
  await button("Set limits").click();
  await page.locator("main .notice.bad:not(:empty)").first().waitFor();
  await button("Limits of the group initech").click();
  await page.getByLabel("Limits", { exact: true }).fill("concurrent 2, slots 5/1s");
  await button("Set limits").click();
  await hasText(page, "main", "Limits were set for the group initech");

  await decide(page, button(`Retry job ${dead}`), [`job ${dead}`, "the queue mail"], "Retry");
  await eventually("it waits again", async () => (await ask(service, "GET", `mail/jobs/${dead}`)).state === "waiting");
  await page.goto(`${service.url}/#queues/mail/${dead}`);
  await decide(page, button("Cancel the job"), [`job ${dead}`, "gone for good"], "Cancel the job");
  await hasText(page, "main", `Job ${dead} is cancelled.`);
  assert.equal((await ask(service, "GET", "mail")).totals.cancelled, 1);

  for (const words of ['action="pause"', 'action="limits"', 'action="retry"', 'action="cancel"']) {
    const line = await eventually(`the log says ${words}`, () => service.log.split("\n").find((line) => line.includes(words)));
    assert.ok(line.includes('who="ada"') && line.includes('queue="mail"'), line);
  }
  assert.deepEqual(complaints, []);
}));

test("a queue shows its limits, who changed them and its recurring jobs, and they can be changed", () => serving(async (service) => {
  const { page, complaints } = await open(browser, service, { hash: "#queues/roles", ...BOSS });
  await hasText(page, "#queue-settings", "slots 10/10s");
  await hasText(page, "#queue-settings", "1, by the file");
  await hasText(page, "#recurring-list", "30 2 * * * (Europe/Berlin)");
  const limits = page.getByRole("button", { name: "Limits of the queue", exact: true });
  await limits.click();
  const input = page.getByLabel("Limits of every group", { exact: true });
  assert.equal(await input.inputValue(), "slots 10/10s");
  await input.fill("slots 5/10s, concurrent 2");
  await page.getByRole("button", { name: "Set limits" }).click();
  await hasText(page, "#queue-settings", "slots 5/10s, concurrent 2");
  await hasText(page, "#queue-settings", "2, by a call");
  await hasText(page, "#queue-settings", "this service's file says something else");
  assert.deepEqual((await ask(service, "GET", "roles")).settings.group_limits, ["slots 5/10s", "concurrent 2"]);
  await decide(page, page.getByRole("button", { name: "End nightly" }), ["The queue roles"], "End it");
  await hasText(page, "main", "Ended: the recurring job nightly.");
  assert.deepEqual((await ask(service, "GET", "roles/recurring")).recurring, []);
  assert.deepEqual(complaints, []);
}));

test("whoever may only read sees figures and changes nothing", () => serving(async (service) => {
  const { page, complaints } = await open(browser, service, { hash: "#queues/mail", token: "the-guest" });
  await eventually("the chart tells the depth", async () => (await page.locator("#depth-chart").getAttribute("aria-label"))?.includes("waiting 6"));
  await hasText(page, ".notice", "Groups are shown to tokens with the role check.");
  await hasText(page, "#queue-actions", "Changes need the role admin.");
  const text = await page.locator("main").textContent();
  for (const secret of ["acme", "404 Not Found"]) assert.ok(!text.includes(secret), secret);
  assert.equal(await page.locator("main button", { hasText: /Pause|Retry|Cancel|Limits/ }).filter({ visible: true }).count(), 0);
  assert.deepEqual(complaints, []);
}));

test("queues can be used by keyboard and read aloud, on a phone too, in both themes", () => serving(async (service, [dead]) => {
  const shots = process.env.TOLLWAY_SHOTS;
  await eventually("there is something to draw", async () =>
    JSON.parse((await service.request("GET", "/dashboard/queue?queue=mail", undefined, "the-boss")).text).at_ms?.length > 1);
  for (const theme of ["light", "dark"]) {
    for (const width of [390, 1200]) {
      const { page, context, complaints } = await open(browser, service, { width, theme, ...BOSS });
      for (const [name, hash, ready] of [["overview", "#overview", "#tile-waiting"], ["queue", `#queues/mail/${dead}`, "#job-facts dt"]]) {
        await page.goto(`${service.url}/${hash}`);
        await page.locator(ready).first().waitFor();
        await isLive(page);
        await assertAccessible(page, `${hash} ${theme} ${width}`);
        if (shots) await page.screenshot({ path: `${shots}/${name}-${width}-${theme}.png`, fullPage: true });
      }
      await page.getByRole("button", { name: "Pause the queue" }).press("Enter");
      await page.locator("#confirm").waitFor();
      if (shots) await page.screenshot({ path: `${shots}/confirm-${width}-${theme}.png` });
      // What has the focus changes nothing, and the Escape key neither.
      assert.equal(await page.evaluate(() => document.activeElement.textContent), "Leave as it is");
      await page.keyboard.press("Escape");
      await page.locator("#confirm").waitFor({ state: "hidden" });
      assert.equal((await ask(service, "GET", "mail")).paused, false);
      assert.deepEqual(complaints, []);
      await context.close();
    }
  }
}));
