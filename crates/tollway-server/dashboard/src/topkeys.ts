// The keys most often denied, or allowed, in the last minutes: who, under which policy, why.

import type { Denial, Reason, Session, Tick, TopKey } from "./api";
import { h, replace, table, type Child, type Column } from "./dom";
import { ago, count, keyText, perMinute } from "./format";
import { policyLink } from "./view";

const SHOWN = 10;

const REASONS: Record<Reason, string> = {
  exhausted: "limit used up",
  banned: "banned",
  too_costly: "costs more than the limit",
  no_room: "no room for new keys",
  degraded: "store does not answer",
};

/** Why a request was denied. */
export const reason = (denial: Denial): HTMLElement => h("span", { class: "badge bad" }, REASONS[denial.reason]);

export class TopKeys {
  readonly #list = h("div");
  readonly #sort = h("select", { id: "" }, h("option", { value: "denied" }, "denied"), h("option", { value: "allowed" }, "allowed"));
  readonly element: HTMLElement;
  #tick: Tick | null = null;
  #isAdmin = false;

  /** `name` sets its elements apart from those of another view. */
  constructor(name: string) {
    const id = `${name}-sort`;
    this.#sort.id = id;
    this.#sort.addEventListener("change", () => this.#draw());
    this.element = h("div", { class: "card", id: `${name}-list` },
      h("div", { class: "bar" }, h("h3", {}, "Keys, last five minutes"), h("label", { for: id }, "Sort by"), this.#sort), this.#list);
  }

  session(session: Session): void {
    this.#isAdmin = session.role === "admin";
    this.#sort.disabled = !this.#isAdmin;
    if (!this.#isAdmin) replace(this.#list, h("p", { class: "note" }, "Only tokens with the role admin may see keys."));
  }

  see(tick: Tick): void {
    this.#tick = tick;
    // A row under the pointer or the focus must not move away from it.
    if (!this.#list.matches(":hover, :focus-within")) this.#draw();
  }

  #draw(): void {
    const top = this.#tick?.top;
    if (!top || !this.#isAdmin) return;
    const now_ms = this.#tick?.at_ms ?? 0;
    const isDenied = this.#sort.value === "denied";
    const last = (row: TopKey) => (isDenied ? row.last_denied : row.last_allowed);
    const rates: Column<TopKey>[] = [
      { title: "Denied/min", numeric: true, minor: !isDenied, cell: (row) => perMinute(row.denied_1m) },
      { title: "Allowed/min", numeric: true, minor: isDenied, cell: (row) => perMinute(row.allowed_1m) },
    ];
    replace(this.#list, table(isDenied ? "Most denied keys" : "Busiest keys", [
      { title: "Key", cell: (row) => h("a", { class: "key", href: `#keys/${row.key_hex}` }, keyText(row.key_hex)) },
      ...(isDenied ? rates : rates.reverse()),
      { title: "Per min, over 5 min", numeric: true, minor: true, cell: (row) => perMinute(isDenied ? row.denied_5m : row.allowed_5m) },
      { title: "Policy", cell: (row) => named(last(row)) },
      ...(isDenied ? [{ title: "Why", cell: (row: TopKey) => row.last_denied && reason(row.last_denied) }] : []),
      { title: "Cost", numeric: true, minor: true, cell: (row) => { const one = last(row); return one && count(one.cost); } },
      { title: "Last", minor: true, cell: (row) => { const one = last(row); return one && ago(one.at_ms, now_ms); } },
    ], top[isDenied ? "denied" : "allowed"].slice(0, SHOWN), isDenied ? "No key was denied in the last five minutes." : "No key was allowed in the last five minutes."));
  }
}

/** The policy of a decision; what a request brought with it has no page of its own. */
export function named(of: { domain: string; policy: string } | null): Child {
  return of && policyLink(of);
}
