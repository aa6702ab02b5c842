// Queues: groups with waiting jobs and when the next of them may start, paged by the service.

import { ApiError, call, type Tick } from "./api";
import { h, replace, table, type Child } from "./dom";
import { count, duration, visible } from "./format";
import { CursorPager, Notice, type View } from "./view";

interface Figures { waiting: number; delayed: number; running: number; paused: boolean; ready_at_ms: number | null }
interface Queue extends Figures { name: string; groups: number; dead: number; now_ms: number }
interface Group extends Figures { group: string; blocked_until_ms: number | null }
interface Page { groups: Group[]; cursor: string | null; groups_total: number; now_ms: number }

export class Queues implements View {
  readonly title = "Queues";
  readonly element = h("section", { "aria-labelledby": "queues-title" });
  readonly #notice = new Notice();
  readonly #queues = h("div", { id: "queue-list" });
  readonly #pager = new CursorPager(50, () => void this.#load());
  readonly #name = h("h3", {});
  readonly #list = h("div", { id: "group-list" });
  readonly #groups = h("div", { class: "card", hidden: true },
    h("div", { class: "bar" }, this.#name, this.#pager.element), this.#list);
  #queue = "";
  #asked = 0;

  constructor() {
    replace(this.element, h("div", { class: "card" }, h("h2", { id: "queues-title" }, "Queues"), this.#notice.element, this.#queues), this.#groups);
  }

  show(argument: string): void {
    this.#queue = decodeURIComponent(argument);
    this.#pager.restart();
    // Shown once there is something to show: what stands there belongs to another queue.
    this.#groups.hidden = true;
    void this.#load();
  }

  reconnected(): void {
    void this.#load();
  }

  tick(tick: Tick): void {
    if (tick.at_ms - this.#asked < 2_000 || this.element.matches(":has(table:hover, table:focus-within)")) return;
    this.#asked = tick.at_ms;
    void this.#load();
  }

  async #load(): Promise<void> {
    try {
      const found = await call<{ queues: Queue[] }>("/v1/queues");
      this.#notice.tell(found.queues.length === 0 ? "This service has no queue yet." : "");
      replace(this.#queues, found.queues.length > 0 && table("Queues", [
        { title: "Queue", cell: (row: Queue) => h("a", { href: `#queues/${encodeURIComponent(row.name)}` }, visible(row.name)) },
        { title: "Waiting", numeric: true, cell: (row) => count(row.waiting) },
        { title: "Delayed", numeric: true, minor: true, cell: (row) => count(row.delayed) },
        { title: "Running", numeric: true, cell: (row) => count(row.running) },
        { title: "Groups", numeric: true, cell: (row) => count(row.groups) },
        { title: "Dead", numeric: true, minor: true, cell: (row) => count(row.dead) },
        { title: "Next ready", numeric: true, minor: true, cell: (row) => ready(row, row.now_ms) },
      ], found.queues, ""));
      if (this.#queue) await this.#loadGroups();
    } catch (error) {
      replace(this.#queues);
      const isAbsent = error instanceof ApiError && [404, 405].includes(error.status);
      if (isAbsent) this.#notice.tell("This service runs no queues.");
      else this.#notice.fail(error);
    }
  }

  async #loadGroups(): Promise<void> {
    const asked = this.#queue;
    let page: Page;
    try {
      page = await call<Page>(`/v1/queues/${encodeURIComponent(asked)}/groups?${this.#pager.query}`);
    } catch (error) {
      // Groups are named after customers, so whoever may only look at figures gets no list of them.
      if (error instanceof ApiError && error.status === 403) {
        this.#groups.hidden = true;
        this.#notice.tell("Groups are shown to tokens with the role check.");
        return;
      }
      // 400: it is no name for a queue at all.
      if (!(error instanceof ApiError && [400, 404].includes(error.status))) throw error;
      this.#groups.hidden = true;
      this.#notice.tell(`No queue is named ${visible(asked)}.`, true);
      return;
    }
    if (asked !== this.#queue) return;
    this.#groups.hidden = false;
    this.#pager.showing(page.cursor, page.groups.length, page.groups_total);
    replace(this.#name, `Groups of ${visible(this.#queue)}`);
    replace(this.#list, table("Groups", [
      { title: "Group", cell: (row: Group) => h("code", { class: "key" }, visible(row.group) || "(no group)") },
      { title: "Waiting", numeric: true, cell: (row) => count(row.waiting) },
      { title: "Delayed", numeric: true, minor: true, cell: (row) => count(row.delayed) },
      { title: "Running", numeric: true, cell: (row) => count(row.running) },
      { title: "Ready", numeric: true, cell: (row) => ready(row, page.now_ms) },
    ], page.groups, "No group has jobs."));
  }
}

/** When the next job may start. */
function ready(figures: Figures, now_ms: number): Child {
  if (figures.paused) return h("span", { class: "badge" }, "paused");
  if (figures.ready_at_ms === null) return "–";
  return figures.ready_at_ms <= now_ms ? "now" : `in ${duration(figures.ready_at_ms - now_ms)}`;
}
