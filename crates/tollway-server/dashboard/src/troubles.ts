// What is wrong with the service, each kind in a sentence, and what to do about it.

import type { Trouble } from "./api";
import { h, say } from "./dom";
import { duration, moment, some, visible } from "./format";

/** A headline, what to do, and where. */
interface Told { what: string; todo: string; reason?: string | null; link?: [text: string, hash: string] }

function told(trouble: Trouble): Told {
  switch (trouble.kind) {
    case "draining":
      return { what: "The service is stopping.", todo: "It finishes the requests under way, and then ends." };
    case "store_down":
      return {
        what: `The store has not answered since ${moment(trouble.since_ms)}.`,
        todo: `${some(trouble.unanswered, "request was", "requests were")} decided without it, as on_store_error of each policy says. Start the store again, or restore the connection to it; this service then uses it again by itself.`,
        reason: trouble.reason,
      };
    case "degraded":
      return {
        what: `${some(trouble.decisions, "decision was", "decisions were")} made without the store.`,
        todo: "It answers some calls too late. Check its load, and the network between it and this service.",
      };
    case "queue_store_down":
      return {
        what: `The queue store has not answered since ${moment(trouble.since_ms)}.`,
        todo: "Calls to queues are answered with 503 until it is back. Start it again, or restore the connection to it. Stored jobs are kept.",
        reason: trouble.reason,
      };
    case "queue_store_full":
      return { what: "The disk of the queue file is full.", todo: "New jobs are refused. Free some space; the queues then go on by themselves." };
    case "queue_stuck":
      return stuck(trouble);
    case "config_stale":
      return {
        what: "The configuration on disk is not in force.",
        todo: "The previous one is still in force. Correct the file: it is read again when it changes.",
        reason: trouble.reason,
      };
    case "xds_down":
      return {
        what: `The control plane has not been connected since ${moment(trouble.since_ms)}.`,
        todo: trouble.has_rules
          ? "The rules that it pushed last stay in force. Start it again, or restore the connection to it; this service then connects again by itself."
          : "It has pushed no rules yet: its domains are not limited. Check the section [xds] of the configuration, and that the control plane runs.",
        reason: trouble.reason,
      };
    case "xds_refused":
      return {
        what: `Version ${visible(trouble.version)} of the rules that the control plane pushed is refused.`,
        todo: "Those before stay in force. Correct the rules there.",
        reason: trouble.reason,
      };
    case "pressure":
      return {
        what: `Memory for keys is full: ${pressure(trouble.forgotten, trouble.refused)}.`,
        todo: "Look below for who sends so many keys, or start the service with a larger --memory-bytes.",
        link: ["Most denied keys", "#keys"],
      };
    case "clock_off":
      return {
        what: `The clock of this node is ${seconds(trouble.off_ms)} ${trouble.off_ms > 0 ? "ahead of" : "behind"} the time of its system.`,
        todo: "Keys may have to wait that much longer. Check the time service (NTP) of this machine.",
      };
    case "clock_jumped":
      return {
        what: `The time of this system was set ${trouble.jump_ms > 0 ? "forward" : "back"} by ${seconds(trouble.jump_ms)}.`,
        todo: "Limits may have been reset early, or keys may wait longer. Check the time service (NTP) of this machine.",
      };
    case "snapshot_old":
      return {
        what: `The last snapshot is ${duration(trouble.age_ms)} old.`,
        todo: "After a crash, keys would start from it. Check that there is space at its path, and that this service may write there.",
        reason: trouble.reason,
      };
  }
}

/** To the nearest second: two clocks that are read one after the other differ by a little more. */
const seconds = (ms: number): string => duration(Math.round(Math.abs(ms) / 1_000) * 1_000);

function stuck(trouble: Trouble & { kind: "queue_stuck" }): Told {
  const queue = visible(trouble.queue);
  const link: [string, string] = ["Open the queue", `#queues/${encodeURIComponent(trouble.queue)}`];
  const waiting = some(trouble.waiting, "job waits", "jobs wait");
  const oldest = trouble.oldest_ms > 0 ? `, the oldest for ${duration(trouble.oldest_ms)}` : "";
  switch (trouble.why) {
    case "paused":
      return { what: `The queue ${queue} is paused and ${waiting}${oldest}.`, todo: "Resume it when whatever it was paused for is over.", link };
    case "no_worker":
      return { what: `No worker takes jobs from the queue ${queue}: ${waiting}${oldest}.`, todo: "Start a worker, or find out why those that run do not ask for jobs.", link };
    case "none_ends":
      return {
        what: `Nothing moves in the queue ${queue}: ${waiting}${oldest}, and ${some(trouble.running, "job runs", "jobs run")} without an end.`,
        todo: "Look at what their workers are doing.",
        link,
      };
  }
}


function pressure(forgotten: number, refused: number): string {
  const parts = [
    refused > 0 && some(refused, "request of a new key was denied", "requests of new keys were denied"),
    forgotten > 0 && some(forgotten, "key was forgotten early", "keys were forgotten early"),
  ];
  return parts.filter(Boolean).join(", ");
}

/** What sets one trouble apart from others; its figures do not. */
const nameOf = (trouble: Trouble): string =>
  trouble.kind === "queue_stuck" ? `${trouble.kind} ${trouble.why} ${trouble.queue}` : trouble.kind;

/** One trouble. Its parts stay as they are while its figures change: a link that is replaced cannot be clicked. */
class Banner {
  readonly #what = h("strong");
  readonly #todo = h("span");
  readonly #reason = h("code");
  readonly #link = h("a");
  readonly element = h("p", {}, this.#what, " ", this.#todo, " ", this.#reason, " ", this.#link);

  tell({ what, todo, reason, link }: Told): void {
    say(this.#what, what);
    say(this.#todo, reason ? `${todo} Reason:` : todo);
    say(this.#reason, reason ? visible(reason) : "");
    say(this.#link, link?.[0] ?? "");
    this.#link.href = link?.[1] ?? "";
    this.#reason.hidden = !reason;
    this.#link.hidden = !link;
  }
}

/** All that is wrong. What is new is read out once; figures that change are not. */
export class Banners {
  readonly #shown = new Map<string, Banner>();

  constructor(readonly list: HTMLElement, readonly alert: HTMLElement) {}

  show(troubles: Trouble[]): void {
    this.#tell(troubles.map((trouble) => [nameOf(trouble), told(trouble)]));
  }

  /** The service does not answer; what is shown is as of then. */
  lost(at_ms: number): void {
    const since = at_ms > 0 ? `The figures below are from ${moment(at_ms)}. ` : "";
    const todo = `${since}Check that it runs and that this browser can reach it; the page reconnects by itself.`;
    this.#tell([["lost", { what: "The service does not answer.", todo }]]);
  }

  #tell(all: [name: string, told: Told][]): void {
    this.list.hidden = all.length === 0;
    const names = new Set(all.map(([name]) => name));
    for (const [name, banner] of this.#shown) {
      if (names.has(name)) continue;
      banner.element.remove();
      this.#shown.delete(name);
    }
    const fresh: string[] = [];
    all.forEach(([name, told], index) => {
      const banner = this.#shown.get(name) ?? new Banner();
      if (!this.#shown.has(name)) fresh.push(told.what);
      this.#shown.set(name, banner);
      banner.tell(told);
      if (this.list.children[index] !== banner.element) this.list.insertBefore(banner.element, this.list.children[index] ?? null);
    });
    if (fresh.length > 0) say(this.alert, fresh.join(" "));
    else if (all.length === 0) say(this.alert, "");
  }
}
