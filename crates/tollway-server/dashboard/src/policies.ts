// Policies: filtered, sorted and paged by the service; one of them in full, with a form to try it.

import { call, type PolicyRow, type Tick } from "./api";
import { h, replace, settled, table, type Child } from "./dom";
import { count, duration, keyHex, visible } from "./format";
import { Usage } from "./usage";
import { Notice, Pager, policyLink, type View } from "./view";

interface Found { matched: number; policies: PolicyRow[] }

interface Answer {
  allowed: boolean;
  degraded?: boolean;
  charges: { limit: number; remaining: number; retry_after_ms?: number | null; reset_after_ms: number }[];
}

const PAGE = 25;

export class Policies implements View {
  readonly title = "Policies";
  readonly element = h("section", { "aria-labelledby": "policies-title" });
  #chosen: { domain: string; policy: string } | null = null;
  #asked = 0;
  readonly #notice = new Notice();
  readonly #filter = h("input", { id: "policy-filter", type: "search", placeholder: "name or domain" });
  readonly #sort = h("select", { id: "policy-sort" },
    ...["name", "allowed", "denied", "shadow"].map((by) => h("option", { value: by }, by === "shadow" ? "shadow-denied" : by)));
  readonly #pager = new Pager(PAGE, "policies", () => void this.#load());
  readonly #list = h("div", { id: "policy-list" });
  readonly #detail = h("div", { class: "card", id: "policy-detail", hidden: true });

  constructor() {
    const again = settled(() => {
      this.#pager.offset = 0;
      void this.#load();
    });
    this.#filter.addEventListener("input", again);
    this.#sort.addEventListener("change", again);
    replace(this.element, this.#detail,
      h("div", { class: "card" },
        h("h2", { id: "policies-title" }, "Policies"),
        h("div", { class: "bar" }, h("label", { for: "policy-filter" }, "Filter"), this.#filter,
          h("label", { for: "policy-sort" }, "Sort by"), this.#sort, this.#pager.element),
        this.#notice.element, this.#list));
  }

  show(argument: string): void {
    const [domain, policy] = argument.split("/").map(decodeURIComponent);
    this.#chosen = policy ? { domain: domain ?? "", policy } : null;
    this.#detail.hidden = true;
    void this.#load();
    if (this.#chosen) void this.#present(this.#chosen);
  }

  reconnected(): void {
    void this.#load();
  }

  tick(tick: Tick): void {
    if (tick.at_ms - this.#asked < 2_000 || this.#list.matches(":hover, :focus-within")) return;
    this.#asked = tick.at_ms;
    void this.#load();
  }

  async #load(): Promise<void> {
    const query = new URLSearchParams({ q: this.#filter.value, sort: this.#sort.value, offset: String(this.#pager.offset), limit: String(PAGE) });
    try {
      // The service decodes %20, not +.
      const found = await call<Found>(`/dashboard/policies?${query.toString().replaceAll("+", "%20")}`);
      this.#notice.tell("");
      this.#pager.showing(found.matched, found.policies.length);
      replace(this.#list, table("List of policies", [
        { title: "Policy", cell: policyLink },
        { title: "Quota", cell: (row: PolicyRow) => row.config?.quota ?? (row.in_force ? "" : "no longer in force") },
        { title: "Algorithm", minor: true, cell: (row) => row.config?.algorithm ?? "" },
        { title: "Allowed/s", numeric: true, cell: (row) => count(row.recent[0]) },
        { title: "Denied/s", numeric: true, cell: (row) => count(row.recent[1]) },
        { title: "Allowed", numeric: true, minor: true, cell: (row) => count(row.totals[0]) },
        { title: "Denied", numeric: true, minor: true, cell: (row) => count(row.totals[1]) },
        { title: "Shadow-denied", numeric: true, minor: true, cell: (row) => count(row.totals[2]) },
      ], found.policies, "No policy matches."));
    } catch (error) {
      this.#notice.fail(error);
    }
  }

  async #present(of: { domain: string; policy: string }): Promise<void> {
    const query = `policy=${encodeURIComponent(of.policy)}&limit=100`;
    try {
      const found = await call<Found>(`/dashboard/policies?${query}`);
      const row = found.policies.find((one) => one.domain === of.domain && one.policy === of.policy);
      if (of !== this.#chosen) return;
      this.#detail.hidden = false;
      if (!row) {
        replace(this.#detail, h("div", { class: "bar" }, h("h2", {}, `No policy is named ${visible(of.policy)}.`),
          h("a", { class: "button", href: "#policies" }, "Close")));
        return;
      }
      const usage = row.usage ? new Usage(of.policy) : null;
      replace(this.#detail,
        h("div", { class: "bar" }, h("h2", {}, of.domain ? `${of.domain} · ${of.policy}` : of.policy),
          h("a", { class: "button", href: `#overview/${encodeURIComponent(of.domain)}/${encodeURIComponent(of.policy)}` }, "Chart"),
          h("a", { class: "button", href: "#policies" }, "Close")),
        h("dl", { class: "facts" }, ...facts(row)),
        row.config ? this.#tryIt(of.policy) : null, usage?.element);
      await usage?.load();
    } catch (error) {
      this.#notice.fail(error);
    }
  }

  #tryIt(policy: string): HTMLElement {
    const key = h("input", { id: "try-key", required: true, autocomplete: "off", spellcheck: "false", value: "ada" });
    const cost = h("input", { id: "try-cost", type: "number", min: 1, value: 1, size: 6 });
    const notice = new Notice();
    const ask = async (path: string) => {
      try {
        const body = { policy, key: key.value, cost: Number(cost.value) };
        notice.tell(...told(await call<Answer>(path, body, [429])));
      } catch (error) {
        notice.fail(error);
      }
    };
    const submit = (event: Event) => {
      event.preventDefault();
      void ask("/v1/check");
    };
    return h("form", { class: "row", submit, "aria-label": `Try ${policy}` },
      h("label", { for: "try-key" }, "Key"), key, h("label", { for: "try-cost" }, "Cost"), cost,
      h("button", { class: "primary", type: "submit" }, "Check"),
      h("button", { type: "button", click: () => void ask("/v1/peek") }, "Peek"),
      h("a", { href: "#keys", click: (event) => { (event.currentTarget as HTMLAnchorElement).href = `#keys/${keyHex(key.value)}`; } }, "Look up this key"),
      notice.element);
  }
}

function told(answer: Answer): [string, boolean] {
  const charge = answer.charges[0];
  const left = charge ? `${charge.remaining} of ${charge.limit} left` : "";
  const degraded = answer.degraded ? " (decided without the store)" : "";
  if (answer.allowed) return [`Allowed: ${left}${degraded}.`, false];
  const wait = charge?.retry_after_ms;
  return [`Denied: ${wait === null || wait === undefined ? "this cost is never allowed" : `allowed in ${duration(wait)}`}, ${left}${degraded}.`, true];
}

function facts(row: PolicyRow): Child[] {
  const { config } = row;
  const pairs: [string, string][] = [];
  if (config) {
    pairs.push(["Quota", config.quota], ["Algorithm", config.algorithm], ["Most at once", count(config.limit)],
      ["If the store fails", config.on_store_error], ["Mode", config.shadow ? "shadow: counts, never denies" : "enforced"],
      ["Overrides for single keys", String(config.overrides)], ["Key of /v1/gate", config.gate_key]);
  }
  pairs.push(["Allowed", count(row.totals[0])], ["Denied", count(row.totals[1])], ["Shadow-denied", count(row.totals[2])]);
  return pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}
