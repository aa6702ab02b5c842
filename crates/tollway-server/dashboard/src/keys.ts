// One key: how it stands under each policy, and what an administrator may change about it.

import { call, mayChange, whyNot, type Session, type Standing } from "./api";
import { h, replace, settled, table } from "./dom";
import { duration, keyHex, keyText } from "./format";
import { Notice, Pager, policyLink, type View } from "./view";

interface Found { banned: boolean; matched: number; standings: Standing[] }

const PAGE = 25;

export class Keys implements View {
  readonly title = "Keys";
  readonly element = h("section", { "aria-labelledby": "keys-title" });
  #hex = "";
  #found: Found | null = null;
  #session: Session | null = null;
  readonly #input = h("input", { id: "key", name: "key", autocomplete: "off", spellcheck: "false", required: true });
  readonly #filter = h("input", { id: "key-filter", type: "search", placeholder: "all policies" });
  readonly #notice = new Notice();
  readonly #pager = new Pager(PAGE, () => void this.#look());
  readonly #standings = h("div", { id: "standings" });
  readonly #actions = h("div", { class: "bar", id: "key-actions" });
  readonly #result = h("div", { class: "card", hidden: true }, h("div", { class: "bar" }, h("h3", { id: "key-shown" }), this.#actions),
    h("div", { class: "bar" }, h("label", { for: "key-filter" }, "Policies"), this.#filter, this.#pager.element), this.#standings);

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
        h("p", { class: "hint" }, "Write a byte that is no text as \\x00, a backslash as \\\\."), this.#notice.element),
      this.#result);
  }

  show(argument: string): void {
    this.#hex = /^([0-9a-f]{2})+$/.test(argument) ? argument : "";
    this.#found = null;
    this.#result.hidden = !this.#hex;
    this.#pager.offset = 0;
    this.#notice.tell("");
    if (!this.#hex) return;
    this.#input.value = keyText(this.#hex);
    void this.#look();
  }

  session(session: Session): void {
    this.#session = session;
    if (this.#found) this.#present(this.#found);
  }

  reconnected(): void {
    if (this.#hex) void this.#look();
  }

  async #look(): Promise<void> {
    const asked = this.#hex;
    try {
      const found = await call<Found>("/dashboard/key", { key_hex: asked, q: this.#filter.value, offset: this.#pager.offset, limit: PAGE });
      if (asked === this.#hex) this.#present(found);
    } catch (error) {
      this.#notice.fail(error);
    }
  }

  #present(found: Found): void {
    this.#found = found;
    const title = this.#result.querySelector("h3");
    if (title) replace(title, "Key ", h("code", { class: "key" }, keyText(this.#hex)), found.banned ? h("span", { class: "badge bad" }, "banned") : null);
    this.#pager.showing(found.matched, found.standings.length);
    this.#showActions(found.banned);
    const isAdmin = mayChange(this.#session);
    replace(this.#standings, table("How the key stands", [
      { title: "Policy", cell: (row: Standing) => policyLink({ domain: "", policy: row.policy }) },
      { title: "State", cell: state },
      { title: "Remaining", numeric: true, cell: remaining },
      { title: "Next allowed in", numeric: true, cell: (row) => row.treatment === "banned" ? "never" : row.retry_after_ms === null ? "now" : duration(row.retry_after_ms) },
      { title: "Clear in", numeric: true, cell: (row) => duration(row.reset_after_ms) },
      { title: "Quota", minor: true, cell: (row) => row.own_quota ? `${row.quota} (its own)` : row.quota },
      ...(isAdmin ? [{ title: "Change", cell: (row: Standing) => this.#changes(row) }] : []),
    ], found.standings, "No policy matches."));
  }

  #showActions(banned: boolean): void {
    if (mayChange(this.#session)) {
      replace(this.#actions, h("button", { type: "button", id: "ban", click: () => void this.#ban(!banned) }, banned ? "Lift the ban" : "Ban this key"));
    } else {
      replace(this.#actions, h("span", { class: "hint" }, whyNot(this.#session)));
    }
  }

  #changes(row: Standing): HTMLElement {
    const label = (what: string) => `${what} under ${row.policy}`;
    return h("span", { class: "buttons" },
      h("button", { type: "button", "aria-label": label("Reset"), click: () => void this.#change("/dashboard/reset", { policy: row.policy }, `Reset under ${row.policy}.`) }, "Reset"),
      h("button", { type: "button", "aria-label": label("Set a quota"), click: (event) => this.#askQuota(row, event.currentTarget as HTMLElement) }, "Quota"));
  }

  #askQuota(row: Standing, button: HTMLElement): void {
    const input = h("input", { value: row.quota, "aria-label": `Quota under ${row.policy}`, size: 16 });
    const form = h("form", {
      class: "row",
      submit: (event) => {
        event.preventDefault();
        const quota = input.value.trim() || null;
        void this.#change("/dashboard/quota", { policy: row.policy, quota }, quota ? `Quota of its own under ${row.policy}: ${quota}.` : `No quota of its own under ${row.policy} any more.`);
      },
    }, input, h("button", { class: "primary", type: "submit" }, "Set"),
      row.own_quota ? h("button", { type: "submit", click: () => { input.value = ""; } }, "Remove") : null);
    button.parentElement?.replaceWith(form);
    input.select();
  }

  async #ban(banned: boolean): Promise<void> {
    await this.#change("/dashboard/ban", { banned }, banned ? "Banned until lifted or until the service restarts." : "The ban is lifted.");
  }

  async #change(path: string, body: Record<string, unknown>, done: string): Promise<void> {
    try {
      await call(path, { ...body, key_hex: this.#hex });
      this.#notice.tell(done);
      await this.#look();
    } catch (error) {
      this.#notice.fail(error);
    }
  }
}

function state(row: Standing): HTMLElement {
  if (row.treatment === "banned") return h("span", { class: "badge bad" }, "banned");
  if (row.treatment === "unlimited") return h("span", { class: "badge" }, "unlimited");
  const text = row.allowed ? "allowed" : "denied";
  return h("span", {}, h("span", { class: row.allowed ? "badge good" : "badge bad" }, text),
    row.treatment === "shadow" ? h("span", { class: "badge" }, "shadow") : null,
    row.degraded ? h("span", { class: "badge bad" }, "store gone") : null);
}

function remaining(row: Standing): HTMLElement {
  const text = `${row.remaining} of ${row.limit}`;
  return h("span", { class: "meter" }, text, h("meter", { min: 0, max: row.limit, value: row.remaining, "aria-hidden": "true" }));
}
