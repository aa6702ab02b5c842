// The keys that operators have changed on this node, so that a ban of last night is found again.

import { call } from "./api";
import { h, replace, table } from "./dom";
import { keyText, moment } from "./format";

interface Changed { key_hex: string; banned: boolean; ends_at_ms: number | null; quotas: { policy: string; quota: string }[] }
interface Listed { total: number; changes: Changed[] }

export class ChangedKeys {
  readonly #list = h("div");
  readonly element = h("div", { class: "card", id: "changed-keys", hidden: true }, h("h3", {}, "Changed by operators, on this node"), this.#list);

  /** Asks for them, and shows them if there are any. */
  async load(): Promise<void> {
    let listed: Listed;
    try {
      listed = await call<Listed>("/dashboard/changes");
    } catch {
      // Whoever may not see keys sees none; a service that is gone is told of elsewhere.
      return;
    }
    this.element.hidden = listed.total === 0;
    if (this.#list.matches(":hover, :focus-within")) return;
    const more = listed.total - listed.changes.length;
    replace(this.#list, table("Keys changed by operators", [
      { title: "Key", cell: (row: Changed) => h("a", { class: "key", href: `#keys/${row.key_hex}` }, keyText(row.key_hex)) },
      { title: "Ban", cell: (row) => !row.banned ? "–" : h("span", { class: "badge bad" }, row.ends_at_ms === null ? "until lifted" : `until ${moment(row.ends_at_ms)}`) },
      { title: "Quotas of its own", cell: (row) => row.quotas.map(({ policy, quota }) => `${policy}: ${quota}`).join(", ") || "–" },
    ], listed.changes, ""), more > 0 && h("p", { class: "hint" }, `And ${more} more.`));
  }
}
