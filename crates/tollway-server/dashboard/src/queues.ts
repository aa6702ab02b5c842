// Queues: how many jobs wait and go through, groups and when the next of their jobs may start, dead
// letters and single jobs. Lists are paged by the service.

import { ApiError, call, mayChange, whyNot, type Session, type Tick } from "./api";
import { Chart } from "./chart";
import { confirmed } from "./confirm";
import { h, replace, say, table, type Child } from "./dom";
import { count, duration, rate, some, visible } from "./format";
import { DeadLetters, JobCard, RunningJobs } from "./jobs";
import { QueueSettings } from "./settings";
import { CursorPager, Notice, type View } from "./view";

interface Figures { waiting: number; delayed: number; running: number; paused: boolean; ready_at_ms: number | null }
interface Queue extends Figures { name: string; groups: number; dead: number; now_ms: number; oldest_at_ms: number | null }
interface Group extends Figures { group: string; blocked_until_ms: number | null }
interface Page { groups: Group[]; cursor: string | null; groups_total: number; now_ms: number }
interface Past {
  at_ms: number[];
  waiting: number[];
  delayed: number[];
  running: number[];
  started: number[];
  done: number[];
  failed: number[];
}

export class Queues implements View {
  readonly title = "Queues";
  readonly element = h("section", { "aria-labelledby": "queues-title" });
  readonly #notice = new Notice();
  readonly #queues = h("div", { id: "queue-list" });
  readonly #pager = new CursorPager(50, "groups", () => void this.#load());
  readonly #queueName = h("h3", {});
  /** The same button as long as the view is there: one that is replaced loses the focus. */
  readonly #pauseQueue = h("button", { type: "button", hidden: true, click: () => void (this.#chosen && this.#pause(this.#chosen, null)) });
  readonly #whyNot = h("span", { class: "hint" });
  readonly #queueActions = h("span", { class: "buttons", id: "queue-actions" }, this.#pauseQueue, this.#whyNot);
  readonly #changed = new Notice();
  readonly #depth = new Chart(h("div", { class: "chart", id: "depth-chart" }), [
    { label: "waiting", colour: "shadow", value: count },
    { label: "running", colour: "allowed", value: count },
    { label: "delayed", colour: "quiet", value: count },
  ], "jobs", 5);
  readonly #throughput = new Chart(h("div", { class: "chart", id: "throughput-chart" }), [
    { label: "started", colour: "accent", value: rate },
    { label: "done", colour: "allowed", value: rate },
    { label: "failed or refused", colour: "denied", value: rate },
  ], "jobs per second", 1);
  readonly #charts = h("div", { class: "card", hidden: true },
    h("div", { class: "bar" }, this.#queueName, this.#queueActions), this.#changed.element,
    h("div", { class: "pair" },
      h("div", {}, h("h4", {}, "Jobs, last five minutes"), this.#depth.element),
      h("div", {}, h("h4", {}, "Jobs per second"), this.#throughput.element)));
  readonly #dead = new DeadLetters(() => void this.#load());
  readonly #job = new JobCard(() => void this.#load());
  readonly #running = new RunningJobs();
  readonly #settings = new QueueSettings();
  readonly #name = h("h3", {});
  readonly #list = h("div", { id: "group-list" });
  readonly #groups = h("div", { class: "card", hidden: true },
    h("div", { class: "bar" }, this.#name, this.#pager.element), this.#list);
  #queue = "";
  #chosen: Queue | null = null;
  #asked = 0;
  #session: Session | null = null;

  constructor() {
    replace(this.element, h("div", { class: "card" }, h("h2", { id: "queues-title" }, "Queues"), this.#notice.element, this.#queues),
      this.#charts, this.#running.element, this.#dead.element, this.#job.element, this.#groups, this.#settings.element);
  }

  show(argument: string): void {
    const [queue = "", job = ""] = argument.split("/").map(decodeURIComponent);
    if (queue !== this.#queue) {
      this.#queue = queue;
      this.#pager.restart();
      this.#changed.tell("");
      this.#dead.show(queue);
      this.#running.show(queue);
      this.#settings.show(queue);
      // Shown once there is something to show: what stands there belongs to another queue.
      this.#groups.hidden = true;
      this.#charts.hidden = true;
    }
    this.#job.show("", "");
    void this.#load().then(() => {
      if (!this.#charts.hidden) this.#job.show(queue, job);
    });
  }

  session(session: Session): void {
    this.#session = session;
    this.#dead.session(session);
    this.#job.session(session);
    this.#settings.session(session);
  }

  restyle(): void {
    this.#depth.restyle();
    this.#throughput.restyle();
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
      replace(this.#queues, found.queues.length > 0 && table("List of queues", [
        { title: "Queue", cell: (row: Queue) => h("a", { href: `#queues/${encodeURIComponent(row.name)}` }, visible(row.name)) },
        { title: "Waiting", numeric: true, cell: (row) => count(row.waiting) },
        { title: "Delayed", numeric: true, minor: true, cell: (row) => count(row.delayed) },
        { title: "Running", numeric: true, cell: (row) => count(row.running) },
        { title: "Groups", numeric: true, minor: true, cell: (row) => count(row.groups) },
        { title: "Dead", numeric: true, cell: (row) => row.dead > 0 ? h("span", { class: "badge bad" }, count(row.dead)) : "0" },
        { title: "Oldest waits", numeric: true, minor: true, cell: (row) => row.oldest_at_ms === null ? "–" : duration(Math.max(1, row.now_ms - row.oldest_at_ms)) },
        { title: "Next ready", numeric: true, minor: true, cell: (row) => ready(row, row.now_ms) },
      ], found.queues, ""));
      const chosen = found.queues.find((queue) => queue.name === this.#queue);
      if (chosen) await this.#loadQueue(chosen);
      if (this.#queue) await this.#loadGroups();
    } catch (error) {
      replace(this.#queues);
      const isAbsent = error instanceof ApiError && [404, 405].includes(error.status);
      if (isAbsent) this.#notice.tell("This service runs no queues.");
      else this.#notice.fail(error);
    }
  }

  async #loadQueue(queue: Queue): Promise<void> {
    // Before the first look at a queue there is no history: the chart is empty.
    const past = await call<Partial<Past>>(`/dashboard/queue?queue=${encodeURIComponent(queue.name)}`, undefined, [404]);
    if (queue.name !== this.#queue) return;
    this.#charts.hidden = false;
    replace(this.#queueName, `Queue ${visible(queue.name)}`, queue.paused && " ", queue.paused && h("span", { class: "badge bad" }, "paused"));
    this.#chosen = queue;
    const isAdmin = mayChange(this.#session);
    this.#pauseQueue.hidden = !isAdmin;
    say(this.#pauseQueue, queue.paused ? "Resume the queue" : "Pause the queue");
    say(this.#whyNot, isAdmin ? "" : whyNot(this.#session));
    if (past.at_ms) {
      const { at_ms, waiting = [], running = [], delayed = [], started = [], done = [], failed = [] } = past;
      this.#depth.set(at_ms, [waiting, running, delayed]);
      this.#throughput.set(at_ms, [started, done, failed]);
    }
    await this.#dead.see(queue.dead);
    await this.#running.see(queue.running);
    await this.#settings.load();
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
      this.#charts.hidden = true;
      this.#notice.tell(`No queue is named ${visible(asked)}.`, true);
      return;
    }
    if (asked !== this.#queue) return;
    this.#groups.hidden = false;
    this.#pager.showing(page.cursor, page.groups.length, page.groups_total);
    replace(this.#name, `Groups of ${visible(this.#queue)}`);
    replace(this.#list, table("List of groups", [
      { title: "Group", cell: (row: Group) => h("code", { class: "key" }, named(row.group)) },
      { title: "Waiting", numeric: true, cell: (row) => count(row.waiting) },
      { title: "Delayed", numeric: true, minor: true, cell: (row) => count(row.delayed) },
      { title: "Running", numeric: true, minor: true, cell: (row) => count(row.running) },
      { title: "Ready", numeric: true, cell: (row) => ready(row, page.now_ms) },
      ...(mayChange(this.#session) ? [{ title: "Change", cell: (row: Group) => this.#groupActions(asked, row) }] : []),
    ], page.groups, "No group has jobs."));
  }

  #groupActions(queue: string, row: Group): HTMLElement {
    const verb = row.paused ? "Resume" : "Pause";
    const of = named(row.group);
    return h("span", { class: "buttons" },
      h("button", { type: "button", "aria-label": `${verb} the group ${of}`, click: () => void this.#pause({ ...row, name: queue }, row.group) }, verb),
      h("button", { type: "button", "aria-label": `Limits of the group ${of}`, click: () => void this.#limit(queue, row.group) }, "Limits"));
  }

  /** Pauses or resumes a queue, or one of its groups. */
  async #pause(of: Figures & { name: string }, group: string | null): Promise<void> {
    const what = group === null ? `the queue ${visible(of.name)}` : `the group ${named(group)} of the queue ${visible(of.name)}`;
    const verb = of.paused ? "Resume" : "Pause";
    const scope = of.paused
      ? `${some(of.waiting, "job waits in it and starts as its limits allow", "jobs wait in it and start as their limits allow")}.`
      : `No further job starts until it is resumed. ${some(of.waiting, "job waits", "jobs wait")}, and ${some(of.running, "job that runs goes on", "jobs that run go on")}.`;
    await this.#change({ question: `${verb} ${what}?`, scope, verb }, () =>
      call(`/v1/queues/${encodeURIComponent(of.name)}/${verb.toLowerCase()}`, group === null ? {} : { group }), `${of.paused ? "Resumed" : "Paused"}: ${what}.`);
  }

  /** Gives a group limits of its own, or takes them back. */
  async #limit(queue: string, group: string): Promise<void> {
    const what = `the group ${named(group)} of the queue ${visible(queue)}`;
    await this.#change({
      question: "Give the group limits of its own?",
      scope: `They hold for ${what} in place of the queue's, from now on. What is in use stays in use.`,
      verb: "Set limits",
      input: { label: "Limits", value: "", hint: "As in the configuration, with commas between them: slots 10/10s, concurrent 2. Empty: the queue's limits hold again." },
    }, (given) => {
      const limits = given === "" ? null : given.split(",").map((limit) => limit.trim());
      return call(`/v1/queues/${encodeURIComponent(queue)}/limits`, { group, limits });
    }, `Limits were set for ${what}.`);
  }

  async #change(change: Parameters<typeof confirmed>[0], act: (given: string) => Promise<unknown>, done: string): Promise<void> {
    const given = await confirmed(change);
    if (given === null) return;
    try {
      await act(given);
      this.#changed.tell(done);
    } catch (error) {
      this.#changed.fail(error);
    }
    await this.#load();
  }
}

const named = (group: string): string => visible(group) || "(no group)";

/** When the next job may start. */
function ready(figures: Figures, now_ms: number): Child {
  if (figures.paused) return h("span", { class: "badge" }, "paused");
  if (figures.ready_at_ms === null) return "–";
  return figures.ready_at_ms <= now_ms ? "now" : `in ${duration(figures.ready_at_ms - now_ms)}`;
}
