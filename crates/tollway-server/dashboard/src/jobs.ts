// One job, and a queue's dead letters: what became of them and why, and what can be done about it.

import { ApiError, call, mayChange, remove, whyNot, type Session } from "./api";
import { confirmed } from "./confirm";
import { h, replace, table, type Child } from "./dom";
import { count, duration, moment, visible } from "./format";
import { CursorPager, Notice } from "./view";

export interface Job {
  id: number;
  group?: string;
  payload?: string;
  payload_base64?: string;
  priority: number;
  weight: number;
  attempt: number;
  failures: number;
  /** Attempts that did not get it done, the last ones. */
  history: Attempt[];
  enqueued_at_ms: number;
  state: "waiting" | "running" | "done" | "dead";
  due_at_ms?: number;
  ready?: { expected_ms: number; latest_ms: number } | null;
  worker?: string;
  leased_at_ms?: number;
  expires_at_ms?: number;
  progress?: { done: number; total: number } | null;
  cancelled?: boolean;
  at_ms?: number;
  result?: string;
  result_base64?: string;
  reason?: string;
}

interface Attempt {
  attempt: number;
  worker?: string;
  leased_at_ms: number;
  ended_at_ms: number;
  outcome: "failed" | "limited" | "released" | "expired";
  reason?: string;
  wait_ms?: number;
}

/** How much of a payload or a result is shown. */
const TEXT_MAX = 2_000;

const path = (queue: string, rest: string): string => `/v1/queues/${encodeURIComponent(queue)}/${rest}`;
const link = (queue: string, id: number): HTMLElement =>
  h("a", { href: `#queues/${encodeURIComponent(queue)}/${id}`, "aria-label": `Job ${id}` }, `${id}`);

async function retry(queue: string, jobs: Job[]): Promise<string | null> {
  const [first] = jobs;
  if (!first) return null;
  const what = jobs.length === 1 ? `job ${first.id}` : `these ${count(jobs.length)} jobs`;
  const agreed = await confirmed({
    question: `Retry ${what}?`,
    scope: `Of the queue ${visible(queue)}. ${jobs.length === 1 ? "The job returns to its group and its failures are" : "The jobs return to their groups and their failures are"} forgotten. Work that was done before may be repeated.`,
    verb: "Retry",
  });
  if (agreed === null) return null;
  for (const job of jobs) await call(path(queue, "dead/retry"), { id: job.id });
  return `Put back: ${what}.`;
}

async function cancel(queue: string, job: Job): Promise<string | null> {
  const isDead = job.state === "dead";
  const scope = {
    dead: "Its payload and the reason of its failure are gone for good.",
    running: "Its worker hears of it at the next heartbeat; what it has done by then is done. It is not tried again.",
    waiting: "It is taken out of the queue, and is gone for good.",
    done: "",
  }[job.state];
  const verb = isDead ? "Forget" : "Cancel";
  const agreed = await confirmed({ question: `${verb} job ${job.id}?`, scope: `Of the queue ${visible(queue)}: ${scope}`, verb: `${verb} the job` });
  if (agreed === null) return null;
  const { cancelled } = await remove<{ cancelled: string }>(path(queue, `jobs/${job.id}`));
  if (cancelled === "requested") return `Job ${job.id} runs: its worker is asked to stop.`;
  return `Job ${job.id} is ${isDead ? "forgotten" : "cancelled"}.`;
}

/** A queue's dead letters and their reasons. */
export class DeadLetters {
  readonly #notice = new Notice();
  readonly #list = h("div", { id: "dead-list" });
  readonly #pager = new CursorPager(20, "dead letters", () => void this.load(), "after");
  readonly #all = h("button", { type: "button", click: () => void this.#do(() => retry(this.#queue, this.#jobs)) }, "Retry these");
  readonly element = h("div", { class: "card", hidden: true },
    h("div", { class: "bar" }, h("h3", {}, "Dead letters"), this.#all, this.#pager.element), this.#notice.element, this.#list);
  #queue = "";
  #dead = -1;
  #jobs: Job[] = [];
  #session: Session | null = null;

  constructor(readonly onChange: () => void) {}

  session(session: Session): void {
    this.#session = session;
    this.#all.hidden = !mayChange(session);
  }

  /** Shows those of another queue. */
  show(queue: string): void {
    this.#queue = queue;
    this.#dead = -1;
    this.#pager.restart();
    this.#notice.tell("");
    this.element.hidden = true;
  }

  /** So many there are: they are asked for when that has changed. */
  async see(dead: number): Promise<void> {
    if (dead === this.#dead) return;
    this.#dead = dead;
    await this.load();
  }

  async load(): Promise<void> {
    const asked = this.#queue;
    const page = await call<{ jobs: Job[]; after: number | null }>(path(asked, `dead?${this.#pager.query}`));
    if (asked !== this.#queue) return;
    this.#jobs = page.jobs;
    this.element.hidden = this.#dead === 0 && this.#notice.element.textContent === "";
    this.#pager.showing(page.jobs.length < 20 ? null : String(page.after), page.jobs.length, this.#dead);
    this.#all.disabled = page.jobs.length === 0;
    replace(this.#list, table("Dead letters", [
      { title: "Job", cell: (job: Job) => link(asked, job.id) },
      { title: "Group", minor: true, cell: (job) => h("code", { class: "key" }, visible(job.group ?? "")) },
      { title: "Reason", cell: (job) => h("span", { class: "reason" }, visible(job.reason ?? "shown to tokens with the role check")) },
      { title: "Died", minor: true, cell: (job) => moment(job.at_ms ?? 0) },
      { title: "Attempts", numeric: true, minor: true, cell: (job) => count(job.attempt) },
      ...(mayChange(this.#session) ? [{ title: "Change", cell: (job: Job) => this.#actions(asked, job) }] : []),
    ], page.jobs, "No job has failed for good."));
  }

  #actions(queue: string, job: Job): HTMLElement {
    return h("span", { class: "buttons" },
      h("button", { type: "button", "aria-label": `Retry job ${job.id}`, click: () => void this.#do(() => retry(queue, [job])) }, "Retry"),
      h("button", { type: "button", "aria-label": `Forget job ${job.id}`, click: () => void this.#do(() => cancel(queue, job)) }, "Forget"));
  }

  async #do(change: () => Promise<string | null>): Promise<void> {
    if (!(await this.#notice.outcome(change))) return;
    this.#dead = -1;
    this.onChange();
  }
}

/** The jobs of a queue that run, and at which workers. */
export class RunningJobs {
  readonly #list = h("div", { id: "running-list" });
  readonly #pager: CursorPager;
  readonly element: HTMLElement;
  #queue = "";

  constructor() {
    this.#pager = new CursorPager(20, "running jobs", () => void this.load(), "after");
    this.element = h("div", { class: "card", hidden: true },
      h("div", { class: "bar" }, h("h3", {}, "Running jobs"), this.#pager.element), this.#list);
  }

  /** Shows those of another queue. */
  show(queue: string): void {
    this.#queue = queue;
    this.#pager.restart();
    this.element.hidden = true;
  }

  /** So many there are. */
  async see(running: number): Promise<void> {
    if (running === 0) this.show(this.#queue);
    else await this.load(running);
  }

  async load(running = 0): Promise<void> {
    const asked = this.#queue;
    const { jobs, after } = await call<{ jobs: Job[]; after: number | null }>(path(asked, `running?${this.#pager.query}`));
    if (asked !== this.#queue) return;
    this.element.hidden = false;
    this.#pager.showing(jobs.length < 20 ? null : String(after), jobs.length, running || jobs.length);
    const now = Date.now();
    replace(this.#list, table("Running jobs", [
      { title: "Job", cell: (job: Job) => link(asked, job.id) },
      { title: "Group", minor: true, cell: (job) => h("code", { class: "key" }, visible(job.group ?? "")) },
      { title: "Worker", cell: (job) => (job.worker === undefined ? "shown to tokens with the role check" : visible(job.worker) || "without a name") },
      { title: "For", numeric: true, cell: (job) => duration(Math.max(1, now - (job.leased_at_ms ?? now))) },
      { title: "Lease ends", numeric: true, minor: true, cell: (job) => `in ${duration((job.expires_at_ms ?? now) - now)}` },
      { title: "Progress", numeric: true, minor: true, cell: (job) => (job.progress ? `${count(job.progress.done)} of ${count(job.progress.total)}` : "–") },
      { title: "Attempt", numeric: true, cell: (job) => count(job.attempt) },
    ], jobs, "No job runs."));
  }
}

/** What is known of one job. */
export class JobCard {
  readonly #notice = new Notice();
  readonly #id = h("input", { id: "job-id", inputmode: "numeric", size: 12, autocomplete: "off" });
  readonly #facts = h("dl", { class: "facts", id: "job-facts" });
  readonly #history = h("div", { id: "job-history" });
  readonly #actions = h("div", { class: "row" });
  readonly element = h("div", { class: "card", hidden: true },
    h("form", { class: "bar", submit: (event) => this.#go(event) },
      h("h3", {}, "Job"), h("label", { for: "job-id" }, "Number"), this.#id, h("button", { type: "submit" }, "Look up")),
    this.#notice.element, this.#facts, this.#actions, this.#history);
  #queue = "";
  #number = "";
  #session: Session | null = null;

  constructor(readonly onChange: () => void) {}

  session(session: Session): void {
    this.#session = session;
    if (this.#number) void this.load();
  }

  show(queue: string, number: string): void {
    this.#queue = queue;
    this.#number = number;
    this.#id.value = number;
    this.element.hidden = queue === "";
    this.#notice.tell("");
    this.#clear();
    if (number) void this.load();
  }

  #clear(): void {
    for (const part of [this.#facts, this.#actions, this.#history]) replace(part);
  }

  #go(event: Event): void {
    event.preventDefault();
    const hash = `#queues/${encodeURIComponent(this.#queue)}/${encodeURIComponent(this.#id.value.trim())}`;
    if (location.hash === hash) void this.load();
    else location.hash = hash;
  }

  async load(): Promise<void> {
    const [queue, number] = [this.#queue, this.#number];
    try {
      const job = await call<Job>(path(queue, `jobs/${encodeURIComponent(number)}`));
      if (number !== this.#number) return;
      replace(this.#facts, ...facts(job).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
      this.#showActions(queue, job);
      replace(this.#history, table("History of the job", [
        { title: "When", cell: (event: JobEvent) => moment(event.at_ms) },
        { title: "What", cell: (event) => event.what },
        { title: "Worker", minor: true, cell: (event) => visible(event.worker) },
        { title: "Why", cell: (event) => h("span", { class: "reason" }, visible(event.why)) },
      ], events(job), ""));
    } catch (error) {
      this.#clear();
      if (error instanceof ApiError && error.status === 404) this.#notice.tell(this.#notice.element.textContent || error.message);
      else this.#notice.fail(error);
    }
  }

  #showActions(queue: string, job: Job): void {
    if (!mayChange(this.#session)) {
      replace(this.#actions, h("span", { class: "hint" }, whyNot(this.#session)));
      return;
    }
    const button = (name: string, change: () => Promise<string | null>) =>
      h("button", { type: "button", click: () => void this.#do(change) }, name);
    replace(this.#actions,
      job.state === "dead" && button("Retry the job", () => retry(queue, [job])),
      job.state === "dead" && button("Forget the job", () => cancel(queue, job)),
      (job.state === "waiting" || job.state === "running") && !job.cancelled && button("Cancel the job", () => cancel(queue, job)));
  }

  async #do(change: () => Promise<string | null>): Promise<void> {
    if (!(await this.#notice.outcome(change))) return;
    await this.load();
    this.onChange();
  }
}

/** What there is to tell of a job, in the order in which it happened. */
function facts(job: Job): [string, Child][] {
  const told: [string, Child][] = [
    ["State", h("span", { class: job.state === "dead" ? "badge bad" : job.state === "done" ? "badge good" : "badge" }, job.cancelled ? "running, to be cancelled" : job.state)],
  ];
  if (job.group !== undefined) told.push(["Group", h("code", { class: "key" }, visible(job.group) || "(no group)")]);
  told.push(["Enqueued", `${moment(job.enqueued_at_ms)}, priority ${job.priority}, weight ${count(job.weight)}`],
    ["Attempts", `${count(job.attempt)}, of which ${count(job.failures)} failed`]);
  const now = Date.now();
  if (job.state === "waiting") {
    if ((job.due_at_ms ?? 0) > now) told.push(["Delayed until", moment(job.due_at_ms ?? 0)]);
    told.push(["Expected to start", job.ready ? `${moment(job.ready.expected_ms)}, at the latest ${moment(job.ready.latest_ms)}` : "not known: it is paused, or waits for a response"]);
  }
  if (job.state === "running") {
    told.push(["Worker", visible(job.worker ?? "") || "without a name"], ["Lease ends", `in ${duration((job.expires_at_ms ?? now) - now)}`]);
    if (job.progress) told.push(["Progress", `${count(job.progress.done)} of ${count(job.progress.total)}`]);
  }
  if (job.at_ms !== undefined) told.push([job.state === "dead" ? "Died" : "Done", moment(job.at_ms)]);
  if (job.reason !== undefined) told.push(["Reason", visible(job.reason) || "none was given"]);
  const result = text(job.result, job.result_base64);
  if (result) told.push(["Result", result]);
  const payload = text(job.payload, job.payload_base64);
  if (payload) told.push(["Payload", payload]);
  return told;
}

interface JobEvent { at_ms: number; what: string; worker: string; why: string }

/** What happened to a job, the earliest first. */
function events(job: Job): JobEvent[] {
  const told: JobEvent[] = [{ at_ms: job.enqueued_at_ms, what: "Enqueued", worker: "", why: "" }];
  const left = (job.history[0]?.attempt ?? 1) - 1;
  if (left > 0) {
    const what = left === 1 ? "Attempt 1" : `Attempts 1 to ${count(left)}`;
    told.push({ at_ms: job.history[0]?.leased_at_ms ?? 0, what: `${what} came before`, worker: "", why: "Only the last ones are kept." });
  }
  for (const past of job.history) {
    const [what, why] = {
      failed: ["failed", past.reason ?? ""],
      limited: ["was refused by the upstream", `The group had to wait ${duration(past.wait_ms ?? 0)}.`],
      released: ["was given back", "Its worker stopped, or never began it."],
      expired: ["was lost", "Nothing was heard of its worker until the lease ended."],
    }[past.outcome];
    const took = duration(Math.max(1, past.ended_at_ms - past.leased_at_ms));
    told.push({ at_ms: past.ended_at_ms, what: `Attempt ${count(past.attempt)} ${what} after ${took}`, worker: past.worker ?? "", why: why ?? "" });
  }
  if (job.state === "running") told.push({ at_ms: job.leased_at_ms ?? 0, what: `Attempt ${count(job.attempt)} began`, worker: job.worker ?? "", why: "" });
  if (job.state === "done") told.push({ at_ms: job.at_ms ?? 0, what: `Attempt ${count(job.attempt)} finished the job`, worker: "", why: "" });
  if (job.state === "dead") told.push({ at_ms: job.at_ms ?? 0, what: "Became a dead letter", worker: "", why: job.reason ?? "" });
  return told;
}

function text(plain: string | undefined, base64: string | undefined): Child {
  const whole = plain ?? (base64 === undefined ? "" : `${base64} (base 64)`);
  if (whole === "") return null;
  const cut = whole.length > TEXT_MAX ? `${whole.slice(0, TEXT_MAX)}… (${count(whole.length)} characters)` : whole;
  return h("code", { class: "key" }, visible(cut));
}
