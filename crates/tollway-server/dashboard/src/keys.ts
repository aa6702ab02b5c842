// One key: what it is denied and why, how it stands under each policy and by which line of which
// file, and what an administrator may change about it.

import { call, mayChange, whyNot, type Denial, type FoundKey, type Session, type Standing, type Tick } from "./api";
import { ChangedKeys } from "./changed";
import { confirmed, type Change } from "./confirm";
import { h, replace, settled, table, type Child } from "./dom";
import { count, duration, keyHex, keyText, moment } from "./format";
import { inWords, ruleOf, stateOf } from "./standing";
import { toCome } from "./tocome";
import { named, reason, TopKeys } from "./topkeys";
import { Notice, Pager, type View } from "./view";

const PAGE = 25;
const EVERY_MS = 2_000;
const MINUTE_MS = 60_000;

/** How long a ban may last, in milliseconds; empty: until it is lifted. */
const BAN_ENDS: [string, string][] = [
  ["", "when it is lifted"],
  [String(15 * MINUTE_MS), "after 15 minutes"],
  [String(60 * MINUTE_MS), "after an hour"],
  [String(24 * 60 * MINUTE_MS), "after a day"],
];

export class Keys implements View {
  readonly title = "Keys";
  readonly element = h("section", { "aria-labelledby": "keys-title" });
  #hex = "";
  #found: FoundKey | null = null;
  #session: Session | null = null;
  #asked = 0;
  /** Whether an answer is awaited: a store that is slow is not asked again meanwhile. */
  #looking = false;
  readonly #input = h("input", { id: "key", name: "key", autocomplete: "off", spellcheck: "false", required: true });
  readonly #filter = h("input", { id: "key-filter", type: "search", placeholder: "all policies" });
  readonly #notice = new Notice();
  readonly #pager = new Pager(PAGE, "policies", () => void this.#look());
  readonly #top = new TopKeys("keys-top");
  readonly #changed = new ChangedKeys();
  readonly #name = h("h3", { id: "key-shown" });
  readonly #words = h("div", { id: "key-words" });
  readonly #denials = h("div", { id: "denials" });
  readonly #standings = h("div", { id: "standings" });
  readonly #actions = h("div", { class: "bar", id: "key-actions" });
  readonly #result = h("div", { class: "card", hidden: true }, h("div", { class: "bar" }, this.#name, this.#actions), this.#words,
    h("h4", {}, "Last denials"), this.#denials,
    h("div", { class: "bar apart" }, h("h4", {}, "Under each policy"), h("label", { for: "key-filter" }, "Policies"), this.#filter, this.#pager.element), this.#standings);

  constructor() {
    const submit = (event: Event) => {
      event.preventDefault();
      location.hash = `#keys/${keyHex(this.#input.value)}`;
    };
    this.#filter.addEventListener("input", settled(() => {
      this.#pager.offset = 0;
      void this.#look();
    }));
    replace(this.element,
      h("div", { class: "card" },
        h("h2", { id: "keys-title" }, "Look up a key"),
        h("form", { class: "row", submit },
          h("label", { for: "key" }, "Key"), this.#input, h("button", { class: "primary", type: "submit" }, "Look up")),
        h("p", { class: "hint" }, "Escape a byte that is not text as \\x00, and a backslash as \\\\."), this.#notice.element),
      this.#result, this.#top.element, this.#changed.element);
  }

  show(argument: string): void {
    this.#hex = /^([0-9a-f]{2})+$/.test(argument) ? argument : "";
    this.#found = null;
    this.#result.hidden = true;
    this.#top.element.hidden = this.#hex !== "";
    this.#pager.offset = 0;
    this.#notice.tell("");
    this.#changed.element.hidden = true;
    if (!this.#hex) {
      if (this.#session?.role === "admin") void this.#changed.load();
      return;
    }
    this.#input.value = keyText(this.#hex);
    void this.#look();
  }

  session(session: Session): void {
    this.#session = session;
    this.#top.session(session);
    if (!this.#hex && session.role === "admin") void this.#changed.load();
    if (this.#found) this.#present(this.#found);
  }

  tick(tick: Tick): void {
    this.#top.see(tick);
    const isRead = this.#result.matches(":has(table:hover, table:focus-within)");
    if (!this.#hex || this.#looking || isRead || tick.at_ms - this.#asked < EVERY_MS) return;
    this.#asked = tick.at_ms;
    void this.#look();
  }

  reconnected(): void {
    if (this.#hex) void this.#look();
  }

  async #look(): Promise<void> {
    const asked = this.#hex;
    this.#looking = true;
    try {
      const found = await call<FoundKey>("/dashboard/key", { key_hex: asked, q: this.#filter.value, offset: this.#pager.offset, limit: PAGE });
      if (asked === this.#hex) this.#present(found);
    } catch (error) {
      this.#notice.fail(error);
    } finally {
      this.#looking = false;
    }
  }

  #present(found: FoundKey): void {
    this.#found = found;
    this.#result.hidden = false;
    replace(this.#name, "Key ", h("code", { class: "key" }, keyText(this.#hex)), found.banned && " ", found.banned && h("span", { class: "badge bad" }, "banned"));
    replace(this.#words, ...inWords(found).map((sentence) => h("p", {}, sentence)));
    this.#pager.showing(found.matched, found.standings.length);
    this.#showActions(found);
    replace(this.#denials, table("Last denials", [
      { title: "Time", cell: (row: Denial) => moment(row.at_ms) },
      { title: "Times", numeric: true, cell: (row) => count(row.times) },
      { title: "Policy", cell: named },
      { title: "Why", cell: reason },
      { title: "Cost", numeric: true, cell: (row) => count(row.cost) },
      { title: "Told to wait", numeric: true, cell: (row) => row.retry_after_ms === null ? "never allowed" : duration(row.retry_after_ms) },
    ], found.denials, "None is known."));
    const rows = found.descriptor ? [found.descriptor, ...found.standings] : found.standings;
    replace(this.#standings, table("How the key stands", [
      { title: "Policy", cell: named },
      { title: "State", cell: stateOf },
      { title: "Remaining", numeric: true, cell: remaining },
      { title: "Next allowed in", numeric: true, cell: (row) => row.degraded ? "–" : row.treatment === "banned" ? "never" : row.retry_after_ms === null ? "now" : duration(row.retry_after_ms) },
      { title: "Units to come", cell: (row) => toCome(row) },
      { title: "Rule", cell: ruleOf },
      ...(mayChange(this.#session) ? [{ title: "Change", cell: (row: Standing) => this.#changes(row) }] : []),
    ], rows, "No policy matches."));
  }

  #showActions(found: FoundKey): void {
    const byFile = found.standings.find((row) => row.treatment === "banned" && row.treated_by.by === "list of all");
    if (!mayChange(this.#session)) {
      replace(this.#actions, h("span", { class: "hint" }, whyNot(this.#session)));
    } else if (found.banned) {
      replace(this.#actions, h("button", { type: "button", id: "ban", click: () => void this.#lift() }, "Lift the ban"));
    } else if (byFile) {
      replace(this.#actions, h("span", { class: "hint" }, "Only a change of the configuration lets this key in."));
    } else {
      replace(this.#actions, h("button", { type: "button", id: "ban", click: () => void this.#ban() }, "Ban this key"));
    }
  }

  #changes(row: Standing): HTMLElement {
    const label = (what: string) => `${what} under ${row.policy}`;
    return h("span", { class: "buttons" },
      h("button", { type: "button", "aria-label": label("Reset"), click: () => void this.#reset(row) }, "Reset"),
      h("button", { type: "button", "aria-label": label("Set a quota"), click: () => void this.#setQuota(row) }, "Quota"));
  }

  get #key(): string {
    const text = keyText(this.#hex);
    return text.length > 60 ? `${text.slice(0, 60)}…` : text;
  }

  /** Where a quota of its own or a ban holds, and for how long. */
  #whereKept(removed: string): string {
    switch (this.#session?.own_quotas) {
      case "store": return `on every node that shares this store, until it is ${removed}.`;
      case "file": return `on this node, until it is ${removed}: a restart keeps it.`;
      default: return `on this node only. It ends when it is ${removed} or when this service restarts: it keeps no snapshot.`;
    }
  }

  /** What is said of a change that holds on this node alone, as the store does not answer. */
  #isApart(kept: string): string {
    return kept === "process" && this.#session?.own_quotas === "store" ? "The store does not answer: this holds on this node only, until it does." : "";
  }

  async #reset(row: Standing): Promise<void> {
    const where = this.#session?.shared_store ? "on every node that shares this store" : "on this node";
    await this.#change({
      question: `Reset the key ${this.#key} under ${row.policy}?`,
      scope: `What it has used is forgotten, ${where}: ${count(row.limit)} of ${count(row.limit)} units are there at once. Other policies are not changed. This cannot be undone.`,
      verb: "Reset",
    }, () => call("/dashboard/reset", { domain: row.domain, policy: row.policy, key_hex: this.#hex }), `Reset under ${row.policy}.`);
  }

  async #setQuota(row: Standing): Promise<void> {
    await this.#change({
      question: `Give the key ${this.#key} a quota of its own under ${row.policy}?`,
      scope: `It holds in place of ${row.quota}, under this policy, ${this.#whereKept("removed")} What was used stays used.`,
      verb: "Set the quota",
      input: { label: `Quota under ${row.policy}`, value: row.quota, hint: "As in the configuration: 100/1m burst 20, or 10000/month tz Europe/Berlin. Leave it empty to remove the key's own quota." },
    }, (given) => call<{ kept: string }>("/dashboard/quota", { policy: row.policy, key_hex: this.#hex, quota: given || null }),
    (given, { kept }) => this.#isApart(kept) || (given ? `The key has a quota of its own under ${row.policy}: ${given}.` : `The key no longer has a quota of its own under ${row.policy}.`));
  }

  async #ban(): Promise<void> {
    await this.#change({
      question: `Ban the key ${this.#key}?`,
      scope: `All policies deny it, ${this.#whereKept("lifted")}`,
      verb: "Ban",
      choice: { label: "The ban ends", options: BAN_ENDS },
    }, (given) => call<{ kept: string }>("/dashboard/ban", { key_hex: this.#hex, banned: true, ...(given && { for_ms: Number(given) }) }),
    (given, { kept }) => this.#isApart(kept) || `Banned. The ban ends ${BAN_ENDS.find(([ms]) => ms === given)?.[1] ?? ""}.`);
  }

  async #lift(): Promise<void> {
    await this.#change({
      question: `Let the key ${this.#key} in again?`,
      scope: "The ban ends wherever it holds. Every policy decides about the key as its limit says.",
      verb: "Lift the ban",
    }, () => call("/dashboard/ban", { key_hex: this.#hex, banned: false }), "The ban is lifted.");
  }

  async #change<T>(change: Change, act: (given: string) => Promise<T>, done: string | ((given: string, answer: T) => string)): Promise<void> {
    const given = await confirmed(change);
    if (given === null) return;
    try {
      const answer = await act(given);
      this.#notice.tell(typeof done === "string" ? done : done(given, answer));
      await this.#look();
    } catch (error) {
      this.#notice.fail(error);
    }
  }
}

function remaining(row: Standing): Child {
  if (row.degraded || row.treatment === "banned") return "–";
  const text = `${count(row.remaining)} of ${count(row.limit)}`;
  return h("span", { class: "meter" }, text, h("meter", { min: 0, max: row.limit, value: row.remaining, "aria-hidden": "true" }));
}
