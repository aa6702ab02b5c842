// What a proxy says of itself: upstream and store, refusals, and the last changes.

import { h, replace, table, type Child } from "./dom";
import { count, duration, visible } from "./format";

interface Change {
  what: string; at_ms: number; count: number; warning: boolean;
  bucket: string | null; route: string | null; credential: string | null; dimension: string | null;
  before: number | null; limit: number | null; window_ms: number | null; wait_ms: number | null; lasted_ms: number | null;
  scope: string | null; reason: string | null;
}

export interface ProxyStatus {
  upstream: { up: boolean; url: string };
  profile: string;
  store: { up: boolean; reason: string | null } | null;
  waiting: number;
  requests: number;
  limited: Record<string, number>;
  not_forwarded: Record<string, number>;
  changes: Change[];
}

/** Changes shown; the proxy's own page has more. */
const CHANGES_MAX = 20;

export class ProxyState {
  readonly #facts = h("dl", { class: "facts", id: "proxy-facts" });
  readonly #changes = h("div", { id: "proxy-changes" });
  readonly element = h("div", { class: "pair" },
    h("div", { class: "card" }, h("h3", {}, "Proxy"), this.#facts),
    h("div", { class: "card" }, h("h3", {}, "Last changes"), this.#changes));

  constructor() {
    this.element.hidden = true;
  }

  hide(): void {
    this.element.hidden = true;
  }

  showing(status: ProxyStatus): void {
    this.element.hidden = false;
    const facts: [string, Child][] = [
      ["Upstream", h("span", {}, badge(status.upstream.up), visible(status.upstream.url))],
      ["Profile", visible(status.profile)],
      ["Store", status.store === null ? "in memory" : h("span", {}, badge(status.store.up), visible(status.store.reason ?? ""))],
      ["Waiting", `${count(status.waiting)} of ${count(status.requests)} requests held`],
      ["Refused by the upstream", counts(status.limited)],
      ["Answered by the proxy", counts(status.not_forwarded)],
    ];
    replace(this.#facts, ...facts.flatMap(([title, value]) => [h("dt", {}, title), h("dd", {}, value)]));
    replace(this.#changes, table("Last changes", [
      { title: "When", cell: (one: Change) => new Date(one.at_ms).toLocaleTimeString("en-GB") },
      { title: "What", cell: (one) => h("span", { class: one.warning ? "badge bad" : "badge" }, visible(one.what)) },
      { title: "Of", cell: (one) => details(one) },
    ], status.changes.slice(0, CHANGES_MAX), "Nothing has changed yet."));
  }
}

const badge = (isUp: boolean) => h("span", { class: isUp ? "badge good" : "badge bad" }, isUp ? "up" : "down");

/** How often, by cause. */
function counts(of: Record<string, number>): string {
  return Object.entries(of).map(([cause, times]) => `${visible(cause)} ${count(times)}`).join(", ") || "none";
}

function details(one: Change): string {
  const told: string[] = [];
  if (one.bucket) told.push(visible(one.bucket));
  if (one.route && !one.bucket?.startsWith(one.route)) told.push(visible(one.route));
  if (one.limit !== null) {
    const before = one.before === null ? "" : `from ${count(one.before)} to `;
    const window = one.window_ms === null ? "" : ` in ${duration(one.window_ms)}`;
    told.push(`${before}${count(one.limit)} ${visible(one.dimension ?? "")}${window}`);
  }
  if (one.scope) told.push(`scope ${visible(one.scope)}`);
  if (one.wait_ms !== null) told.push(`wait ${duration(one.wait_ms)}`);
  if (one.lasted_ms !== null) told.push(`after ${duration(one.lasted_ms)}`);
  if (one.reason) told.push(visible(one.reason));
  if (one.count > 1) told.push(`${count(one.count)} times`);
  return told.join(" · ");
}
