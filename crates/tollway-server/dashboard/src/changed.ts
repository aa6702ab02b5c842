// The keys that operators have changed, so that a ban of last night is found again, and who has changed quotas.

import { call, type OwnQuota } from "./api";
import { h, replace, table } from "./dom";
import { keyText, moment } from "./format";

interface Changed { key_hex: string; banned: boolean; ends_at_ms: number | null; quotas: OwnQuotaOf[] }
interface OwnQuotaOf extends OwnQuota { policy: string; quota: string }
interface Listed { total: number; changes: Changed[] }
interface QuotaChange { at: string; by: string; from: string; action: "set" | "removed" | "granted" | "banned" | "lifted"; policy: string; key_hex: string; units: number | null; quota: string | null; until: string | null; grant: { units: number; until: string } | null; note: string }
interface QuotaChanges { total: number; changes: QuotaChange[] }

/** Changes of quotas that are shown, the latest first. */
const SHOWN = 20;

export class ChangedKeys {
  readonly #list = h("div");
  readonly element = h("div", { class: "card", id: "changed-keys", hidden: true }, h("h3", {}, "Changed by operators"), this.#list);

  /** Asks for them, and shows them if there are any. */
  async load(): Promise<void> {
    let listed: Listed, log: QuotaChanges;
    try {
      [listed, log] = await Promise.all([call<Listed>("/dashboard/changes"), call<QuotaChanges>(`/admin/quota-changes?n=${SHOWN}`)]);
    } catch {
      // Whoever may not see keys sees none; a service that is gone is told of elsewhere.
      return;
    }
    this.element.hidden = listed.total === 0 && log.total === 0;
    if (this.#list.matches(":hover, :focus-within")) return;
    const more = listed.total - listed.changes.length;
    replace(this.#list, table("Keys changed by operators", [
      { title: "Key", cell: (row: Changed) => h("a", { class: "key", href: `#keys/${row.key_hex}` }, keyText(row.key_hex)) },
      { title: "Ban", cell: (row) => !row.banned ? "–" : h("span", { class: "badge bad" }, row.ends_at_ms === null ? "until lifted" : `until ${moment(row.ends_at_ms)}`) },
      { title: "Quotas of its own", cell: (row) => row.quotas.map(told).join("; ") || "–" },
    ], listed.changes, "None is changed now."), more > 0 && h("p", { class: "hint" }, `And ${more} more.`),
    log.total > 0 && h("h4", {}, "Who changed what"), log.total > 0 && table("Changes, the latest first", [
      { title: "When", cell: (row: QuotaChange) => row.at },
      { title: "Who", cell: (row) => `${row.by}, from ${row.from}` },
      { title: "Key", cell: (row) => h("a", { class: "key", href: `#keys/${row.key_hex}` }, keyText(row.key_hex)) },
      { title: "What", cell: done },
    ], log.changes, ""));
  }
}

/** A quota, until when, and by whom. */
function told({ policy, quota, until, by, note }: OwnQuotaOf): string {
  return `${policy}: ${quota}${until ? ` until ${until}` : ""}, by ${by}${note ? ` (${note})` : ""}`;
}

/** What somebody did. */
function done({ action, policy, units, quota, until, grant, note }: QuotaChange): string {
  const what = {
    set: `quota ${quota ?? ""}${until ? ` until ${until}` : ""}`,
    removed: "quota taken away",
    banned: `banned until ${until ?? "it is lifted"}`,
    lifted: "ban lifted",
    granted: units === null ? `${grant?.units ?? 0} units more until ${grant?.until ?? ""}` : `${units} units given back`,
  }[action];
  return `${policy || "all policies"}: ${what}${note ? ` (${note})` : ""}`;
}
