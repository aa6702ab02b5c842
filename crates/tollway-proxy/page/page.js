// The proxy's own page: asks for figures and buckets again and again, and shows them as text.

const EVERY_MS = 1500;
const PAGE = 100;
const KEY = "tollway-proxy-token";
const $ = (id) => document.getElementById(id);

/** Where the shown page of buckets starts, and where the next one does. */
let cursor = "";
let next = null;

class Refused extends Error {}

/** An element whose children are elements or text, never markup. */
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

async function ask(path) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10_000) });
  if (answer.status === 403) throw new Refused();
  if (!answer.ok) throw new Error(`${path.split("?")[0]} answered ${answer.status}`);
  return answer.json();
}

/** Seconds as people say them. */
function duration(seconds) {
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

const count = (value) => Number(value).toLocaleString("en");

/** Control characters and directions made visible, so that no name rearranges the page. */
const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}]/gu, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);

const CAUSES = {
  "spent": "the window is spent",
  "probe": "an answer is awaited that tells what is left",
  "in-flight": "as many are under way as an upstream without told limits is trusted with",
  "blocked": "the bucket was refused",
  "sub-limit": "a sub-limit was refused",
  "global": "the limit over all routes is spent",
  "credential-spent": "a limit of the credential is spent",
  "credential-probe": "an answer is awaited that tells what the credential has left",
  "credential-blocked": "the credential was refused",
  "slot": "the next slot has not come",
  "concurrency": "as many are under way as the upstream serves at once",
  "local-share": "the store is gone: this proxy keeps to its part",
  "turn": "it goes next",
};

function why(one) {
  const what = one.what && one.what !== "requests" ? ` (${visible(one.what)})` : "";
  const left = one.for === null ? "" : `, for ${duration(one.for)}`;
  return (CAUSES[one.cause] ?? one.cause) + what + left;
}

function left(bucket) {
  if (bucket.blocked_for !== null) return h("span", { class: "badge" }, `blocked for ${duration(bucket.blocked_for)}`);
  if (bucket.known === "silent") return "no limit told";
  if (bucket.dimensions.length === 0) return "not known yet";
  const many = bucket.dimensions.length > 1;
  const one = (it) => `${it.remaining === null ? "?" : count(it.remaining)} of ${it.limit ? count(it.limit) : "?"}${many ? ` ${visible(it.name)}` : ""}`;
  return bucket.dimensions.map(one).join(", ");
}

function resets(bucket) {
  const times = bucket.dimensions.map((it) => it.resets_in).filter((it) => it !== null);
  return times.length ? duration(Math.max(...times)) : "–";
}

function row(bucket) {
  const cell = (title, ...children) => h("td", { "data-title": title }, h("span", {}, ...children));
  const routes = (bucket.routes ?? []).filter((route) => !bucket.bucket.startsWith(route));
  const reasons = (bucket.why ?? []).map(why);
  return h("tr", {},
    h("th", { scope: "row" },
      h("code", {}, visible(bucket.bucket)),
      ...routes.map((route) => h("small", { class: "routes" }, visible(route))),
      h("small", { class: "routes" }, `credential ${bucket.credential.slice(0, 8)}`)),
    cell("Left", left(bucket)),
    cell("Resets in", resets(bucket)),
    cell("In flight", count(bucket.in_flight)),
    cell("Waiting", bucket.queued ? `${count(bucket.queued)}, ${duration(bucket.wait)}` : "0"),
    cell("Why", reasons.length ? reasons.join("; ") : "–"));
}

function showBuckets(page) {
  next = page.next;
  const urgent = (bucket) => (bucket.queued ? 2 : 0) + (bucket.blocked_for !== null ? 1 : 0);
  const sorted = [...page.buckets].sort((one, two) => urgent(two) - urgent(one) || two.queued - one.queued);
  const rows = sorted.map(row);
  if (!rows.length) rows.push(h("tr", {}, h("td", { colspan: "6", class: "none" }, "No bucket yet.")));
  $("buckets").tBodies[0].replaceChildren(...rows);
  $("where").textContent = cursor || next ? `${page.buckets.length} on this page` : "";
  $("first").disabled = !cursor;
  $("next").disabled = !next;
}

function figure(title, value, alarm = false) {
  return h("div", { class: alarm ? "alarm" : null }, h("dt", {}, title), h("dd", {}, String(value)));
}

function showFigures(status) {
  const store = status.store === null ? "in memory" : status.store.up ? "up" : "down";
  const figures = [
    figure("Upstream", status.upstream.up ? "up" : "down", !status.upstream.up),
    figure("Store", store, store === "down"),
    figure("Waiting", count(status.waiting)),
    figure("Requests held", count(status.requests)),
    figure("Credentials", count(status.credentials)),
    figure("Connections", count(status.connections)),
  ];
  if (status.invalid_remaining !== null) figures.push(figure("Invalid left before a ban", count(status.invalid_remaining)));
  $("figures").replaceChildren(...figures);
  $("target").textContent = `${status.upstream.url} · profile ${status.profile}`;
}

function details(change) {
  const told = [];
  const ms = (value) => duration(value / 1000);
  if (change.bucket) told.push(visible(change.bucket));
  if (change.route && !change.bucket?.startsWith(change.route)) told.push(visible(change.route));
  if (change.before !== null) told.push(`from ${count(change.before)} to ${count(change.limit)} ${visible(change.dimension)}`);
  else if (change.limit !== null) told.push(`${count(change.limit)} ${visible(change.dimension)} in ${ms(change.window_ms)}`);
  if (change.scope) told.push(`scope ${change.scope}`);
  if (change.wait_ms !== null) told.push(`wait ${ms(change.wait_ms)}`);
  if (change.lasted_ms !== null) told.push(`after ${ms(change.lasted_ms)}`);
  if (change.unanswered) told.push(`${count(change.unanswered)} calls of the store without an answer`);
  if (change.reason) told.push(visible(change.reason));
  if (change.count > 1) told.push(`${count(change.count)} times`);
  if (change.credential) told.push(`credential ${change.credential}`);
  return told.join(" · ");
}

function showChanges(changes) {
  const entries = changes.map((change) => h("li", {},
    h("time", { datetime: new Date(change.at_ms).toISOString() }, new Date(change.at_ms).toLocaleTimeString("en-GB")),
    h("span", {}, h("strong", { class: change.warning ? "warning" : null }, change.what), " ", h("span", { class: "quiet" }, details(change)))));
  $("changes").replaceChildren(...(entries.length ? entries : [h("li", { class: "none" }, "Nothing has changed yet.")]));
}

function showRefusals(status) {
  const rows = [
    ...Object.entries(status.limited).map(([scope, times]) => [`by the upstream, scope ${scope}`, times]),
    ...Object.entries(status.not_forwarded).map(([cause, times]) => [`by the proxy: ${cause}`, times]),
  ].flatMap(([title, times]) => [h("dt", {}, title), h("dd", {}, count(times))]);
  $("refusals").replaceChildren(...(rows.length ? rows : [h("dt", { class: "none" }, "None"), h("dd", { class: "none" }, "0")]));
}

function say(state, text) {
  $("link").dataset.state = state;
  $("link").textContent = text;
}

async function look() {
  try {
    const query = new URLSearchParams({ max: String(PAGE), ...(cursor && { cursor }) });
    const [status, page] = await Promise.all([ask("status"), ask(`buckets?${query}`)]);
    $("token-form").hidden = true;
    showFigures(status);
    showChanges(status.changes);
    showRefusals(status);
    showBuckets(page);
    say("live", "live");
  } catch (error) {
    if (error instanceof Refused) {
      $("token-form").hidden = false;
      say("refused", sessionStorage.getItem(KEY) ? "token refused" : "needs the admin token");
    } else {
      say("gone", "no answer");
    }
  }
}

let looking = null;
/** Looks now, or once the look under way is over. */
async function again() {
  await looking;
  looking = look();
  await looking;
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("token").value);
  $("token").value = "";
  void again();
});
$("first").addEventListener("click", () => {
  cursor = "";
  void again();
});
$("next").addEventListener("click", () => {
  cursor = next ?? "";
  void again();
});

void again();
setInterval(() => {
  if (!document.hidden) void again();
}, EVERY_MS);
