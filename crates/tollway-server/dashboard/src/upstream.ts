// Upstream buckets: what a proxy of this project believes that others still allow, and who waits;
// and what the proxy says of itself.

import { ApiError, call, type Tick } from "./api";
import { h, replace, table, type Child } from "./dom";
import { count, duration, visible } from "./format";
import { ProxyState, type ProxyStatus } from "./proxystate";
import { CursorPager, Notice, type View } from "./view";

interface Dimension { name: string; limit: number | null; remaining: number | null; resets_in: number | null }

/** Why requests of a bucket wait; proxies of other versions may have causes that are not here. */
interface Why { cause: string; what: string | null; for: number | null }

interface Bucket {
  credential: string;
  bucket: string;
  known: "nothing" | "limit" | "silent";
  dimensions: Dimension[];
  in_flight: number;
  queued: number;
  wait: number;
  blocked_for: number | null;
  routes?: string[];
  why?: Why[];
}

interface Page { buckets: Bucket[]; next: string | null }

export class Upstream implements View {
  readonly title = "Upstream";
  readonly element = h("section", { "aria-labelledby": "upstream-title" });
  readonly #notice = new Notice();
  readonly #list = h("div", { id: "bucket-list" });
  readonly #state = new ProxyState();
  readonly #pager = new CursorPager(50, "buckets", () => void this.#load());
  #asked = 0;
  /** There is no proxy to ask. One that does not answer is asked again. */
  #isAbsent = false;

  constructor() {
    this.#pager.element.hidden = true;
    replace(this.element, h("div", { class: "card" },
      h("div", { class: "bar" }, h("h2", { id: "upstream-title" }, "Upstream buckets"), this.#pager.element), this.#notice.element, this.#list), this.#state.element);
  }

  show(): void {
    this.#pager.restart();
    void this.#load();
  }

  reconnected(): void {
    void this.#load();
  }

  tick(tick: Tick): void {
    if (tick.at_ms - this.#asked < 2_000 || this.#isAbsent || this.#list.matches(":hover, :focus-within")) return;
    this.#asked = tick.at_ms;
    void this.#load();
  }

  async #load(): Promise<void> {
    try {
      const [page, status] = await Promise.all([
        call<Page>(`/dashboard/upstream?${this.#pager.query}`), call<ProxyStatus>("/dashboard/upstream/status")]);
      this.#state.showing(status);
      this.#notice.tell("");
      this.#pager.element.hidden = false;
      this.#pager.showing(page.next, page.buckets.length);
      replace(this.#list, table("Buckets", [
        { title: "Bucket", cell: (row: Bucket) => h("span", {}, h("code", { class: "key" }, visible(row.bucket)), ...routes(row)) },
        { title: "Remaining", cell: (row) => remaining(row) },
        { title: "Resets in", numeric: true, cell: (row) => resets(row) },
        { title: "Waiting", numeric: true, cell: (row) => count(row.queued) },
        { title: "Why", minor: true, cell: (row) => (row.why ?? []).map(reason).join("; ") || "–" },
        { title: "In flight", numeric: true, minor: true, cell: (row) => count(row.in_flight) },
        { title: "Wait", numeric: true, minor: true, cell: (row) => (row.queued ? duration(row.wait * 1_000) : "–") },
        { title: "Credential", minor: true, cell: (row) => h("code", { class: "key", title: visible(row.credential) }, short(visible(row.credential))) },
      ], page.buckets, "No bucket yet."));
    } catch (error) {
      replace(this.#list);
      this.#state.hide();
      this.#pager.element.hidden = true;
      this.#pager.restart();
      this.#isAbsent = error instanceof ApiError && error.status === 404;
      if (this.#isAbsent) this.#notice.tell("No proxy is configured: start the service with --proxy-admin ADDRESS.");
      else this.#notice.fail(error);
    }
  }
}

/** Methods and templates by which it is known, unless its name says so. */
function routes(row: Bucket): Child[] {
  const others = (row.routes ?? []).filter((route) => !row.bucket.startsWith(route));
  return others.map((route) => h("span", { class: "hint route" }, visible(route)));
}

const CAUSES: Record<string, string> = {
  "spent": "window spent",
  "probe": "an answer is awaited",
  "in-flight": "enough under way",
  "blocked": "refused",
  "sub-limit": "sub-limit refused",
  "global": "limit over all routes",
  "credential-spent": "credential's limit spent",
  "credential-probe": "credential: an answer is awaited",
  "credential-blocked": "credential refused",
  "slot": "the next slot has not come",
  "concurrency": "as many under way as are served at once",
  "local-share": "without the store",
  "turn": "goes next",
};

function reason(one: Why): string {
  const what = one.what && one.what !== "requests" ? ` (${visible(one.what)})` : "";
  return (CAUSES[one.cause] ?? visible(one.cause)) + what + (one.for === null ? "" : `, ${duration(one.for * 1_000)}`);
}

function remaining(row: Bucket): Child {
  if (row.blocked_for !== null) return h("span", { class: "badge bad" }, `blocked for ${duration(row.blocked_for * 1_000)}`);
  if (row.known === "silent") return "no limit told";
  if (row.dimensions.length === 0) return "not known yet";
  const told = (one: Dimension) => {
    const left = one.remaining === null ? "?" : count(one.remaining);
    return `${left} of ${one.limit === null ? "?" : count(one.limit)}${row.dimensions.length > 1 ? ` ${visible(one.name)}` : ""}`;
  };
  return row.dimensions.map(told).join(", ");
}

/** Enough of a fingerprint to tell it from the others on the page. */
const short = (text: string): string => (/^[0-9a-f]{32,}$/.test(text) ? `${text.slice(0, 8)}…` : text);

function resets(row: Bucket): string {
  const times = row.dimensions.map((one) => one.resets_in).filter((one): one is number => one !== null);
  return times.length ? duration(Math.max(...times) * 1_000) : "–";
}
