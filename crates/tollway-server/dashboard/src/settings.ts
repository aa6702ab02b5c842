// What a queue was told: its limits and who changed them last, and the jobs that it enqueues itself.

import { call, change, mayChange, remove, whyNot, type Session } from "./api";
import { confirmed } from "./confirm";
import { h, replace, table, type Child } from "./dom";
import { count, duration, moment, visible } from "./format";
import { Notice } from "./view";

interface Settings { group_limits: string[]; queue_limits: string[]; shared: string[]; lease: string; attempts: number; backoff: string; backoff_max: string }
interface Told {
  name: string;
  now_ms: number;
  settings: Settings;
  version: number;
  changed_by: "file" | "call";
  changed_at_ms: number | null;
  file_differs?: boolean;
}
interface Recurring { name: string; cron: string | null; zone: string | null; every_ms: number | null; next_ms: number | null }

const path = (queue: string, rest = ""): string => `/v1/queues/${encodeURIComponent(queue)}${rest}`;
const listed = (limits: string[]): string => limits.map(visible).join(", ") || "none";

export class QueueSettings {
  readonly #notice = new Notice();
  readonly #facts = h("dl", { class: "facts", id: "queue-settings" });
  /** The same button as long as the card is there: one that is replaced loses the focus. */
  readonly #limits = h("button", { type: "button", hidden: true, click: () => void this.#do(() => this.#setLimits()) }, "Limits of the queue");
  readonly #recurring = h("div", { id: "recurring-list" });
  readonly element = h("div", { class: "card", hidden: true },
    h("div", { class: "bar" }, h("h3", {}, "Limits and settings"), this.#limits), this.#notice.element, this.#facts, this.#recurring);
  #queue = "";
  #told: Told | null = null;
  #session: Session | null = null;

  session(session: Session): void {
    this.#session = session;
    this.#limits.hidden = !mayChange(session);
  }

  /** Shows those of another queue. */
  show(queue: string): void {
    this.#queue = queue;
    this.#notice.tell("");
    this.element.hidden = true;
  }

  async load(): Promise<void> {
    const asked = this.#queue;
    const [told, { recurring }] = await Promise.all([
      call<Told>(path(asked)), call<{ recurring: Recurring[] }>(path(asked, "/recurring"))]);
    if (asked !== this.#queue) return;
    this.#told = told;
    this.element.hidden = false;
    replace(this.#facts, ...facts(told).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    replace(this.#recurring, recurring.length > 0 && table("Recurring jobs", [
      { title: "Recurring job", cell: (row: Recurring) => visible(row.name) },
      { title: "When", cell: (row) => (row.cron === null ? `every ${duration(row.every_ms ?? 0)}` : `${visible(row.cron)} (${visible(row.zone ?? "UTC")})`) },
      { title: "Next", cell: (row) => (row.next_ms === null ? "never" : moment(row.next_ms)) },
      ...(mayChange(this.#session) ? [{ title: "Change", cell: (row: Recurring) =>
        h("button", { type: "button", "aria-label": `End ${visible(row.name)}`, click: () => void this.#do(() => this.#end(row.name)) }, "End") }] : []),
    ], recurring, ""));
  }

  async #setLimits(): Promise<string | null> {
    if (!this.#told) return whyNot(this.#session);
    const { name, settings, version } = this.#told;
    const given = await confirmed({
      question: `Change the limits of every group of ${visible(name)}?`,
      scope: `They hold for every group of the queue ${visible(name)} that has none of its own, from now on and at every service that shares it. What is in use stays in use. The file that names the queue is not changed.`,
      verb: "Set limits",
      input: { label: "Limits of every group", value: settings.group_limits.join(", "), hint: "As in the configuration, with commas between them: slots 10/10s, concurrent 2." },
    });
    if (given === null) return null;
    const group_limits = given === "" ? [] : given.split(",").map((limit) => limit.trim());
    await change(path(name), { group_limits, version });
    return `Limits were set for every group of the queue ${visible(name)}.`;
  }

  async #end(name: string): Promise<string | null> {
    const queue = this.#queue;
    const agreed = await confirmed({
      question: `End the recurring job ${visible(name)}?`,
      scope: `The queue ${visible(queue)} no longer enqueues it. Jobs that it has enqueued stay.`,
      verb: "End it",
    });
    if (agreed === null) return null;
    await remove(path(queue, `/recurring/${encodeURIComponent(name)}`));
    return `Ended: the recurring job ${visible(name)}.`;
  }

  async #do(act: () => Promise<string | null>): Promise<void> {
    try {
      const done = await act();
      if (done === null) return;
      this.#notice.tell(done);
      await this.load();
    } catch (error) {
      this.#notice.fail(error);
    }
  }
}

function facts({ settings, version, changed_by, changed_at_ms, file_differs }: Told): [string, Child][] {
  const by = changed_by === "file" ? "the file" : "a call";
  const when = changed_at_ms === null ? "" : `, ${moment(changed_at_ms)}`;
  const told: [string, Child][] = [
    ["Every group", listed(settings.group_limits)],
    ["The queue as a whole", listed(settings.queue_limits)],
    ["Shared with other queues", listed(settings.shared)],
    ["Lease", settings.lease],
    ["Attempts", `${count(settings.attempts)}; a job that failed waits ${settings.backoff}, doubled each time up to ${settings.backoff_max}`],
    ["Version", `${count(version)}, by ${by}${when}`],
  ];
  if (file_differs) told.push(["File", h("span", { class: "badge" }, "this service's file says something else")]);
  return told;
}
