// The first view: how many decisions, how fast, which keys, how the store is.

import { call, type History, type QueueSums, type Session, type Tick } from "./api";
import { Chart } from "./chart";
import { h, replace, say, table } from "./dom";
import { count, duration, micros, rate } from "./format";
import { TopKeys } from "./topkeys";
import { policyLink, type View } from "./view";

const NAMES = { allowed: "allowed", denied: "denied", shadow: "shadow-denied" } as const;

export class Overview implements View {
  readonly title = "Overview";
  readonly element = h("section", { "aria-labelledby": "overview-title" });
  #policy: { domain: string; policy: string } | null = null;
  #asked = 0;
  #isOnlyQueues = false;
  readonly #tiles = {
    allowed: tile("Allowed per second", "allowed"),
    denied: tile("Denied per second", "denied"),
    shadow: tile("Shadow-denied per second", "shadow"),
    latency: tile("Time to decide, p99", "latency"),
    store: tile("Store", "store"),
  };
  /** In place of those, where nothing is decided and jobs wait. */
  readonly #queueTiles = {
    waiting: tile("Jobs waiting", "waiting"),
    running: tile("Jobs running", "running"),
    started: tile("Started per second", "started"),
    oldest: tile("Oldest job waits", "oldest"),
    dead: tile("Dead letters", "dead"),
  };
  readonly #tileRow = h("div", { class: "tiles" });
  readonly #ofPolicies: HTMLElement[];
  readonly #onlyQueues = h("p", { class: "note" }, "This service has queues and no policy. ", h("a", { href: "#queues" }, "Look at the queues"), ".");
  readonly #subject = h("h3", { id: "chart-title" }, "Decisions per second, all policies");
  readonly #all = h("a", { href: "#overview", class: "button", hidden: true }, "Show all policies");
  readonly #busiest = h("div");
  readonly #keys = new TopKeys("top-keys");
  readonly #health = h("dl", { class: "facts" });
  readonly #decisions = new Chart(h("div", { class: "chart", id: "decisions-chart" }), [
    { label: NAMES.allowed, colour: "allowed", value: count },
    { label: NAMES.denied, colour: "denied", value: count },
    { label: NAMES.shadow, colour: "shadow", value: count },
  ], "decisions per second", 5);
  readonly #latency = new Chart(h("div", { class: "chart", id: "latency-chart" }), [
    { label: "median", colour: "allowed", value: micros },
    { label: "99th percentile", colour: "shadow", value: micros },
  ], "time to decide", 10, true);

  constructor() {
    const time = h("div", { class: "card" }, h("h3", {}, "Time to decide"), this.#latency.element);
    const decisions = h("div", { class: "card" }, h("div", { class: "bar" }, this.#subject, this.#all), this.#decisions.element);
    const policies = h("div", { class: "card" }, h("h3", {}, "Policies, last second, most denied first"), this.#busiest);
    this.#ofPolicies = [decisions, this.#keys.element, policies, time];
    replace(this.element,
      h("h2", { id: "overview-title", class: "hidden" }, "Overview"), this.#tileRow, this.#onlyQueues, decisions, this.#keys.element, policies,
      h("div", { class: "pair" }, time, h("div", { class: "card" }, h("h3", {}, "Store and service"), this.#health)));
    this.#showParts(false);
  }

  /** Shows what belongs to decisions, or to queues where there is nothing to decide. */
  #showParts(onlyQueues: boolean): void {
    this.#isOnlyQueues = onlyQueues;
    const tiles = onlyQueues ? this.#queueTiles : this.#tiles;
    replace(this.#tileRow, ...Object.values(tiles).map((one) => one.element));
    for (const part of this.#ofPolicies) part.hidden = onlyQueues;
    this.#onlyQueues.hidden = !onlyQueues;
  }

  show(argument: string): void {
    const [domain, policy] = argument.split("/").map(decodeURIComponent);
    this.#policy = policy ? { domain: domain ?? "", policy } : null;
    say(this.#subject, `Decisions per second, ${this.#policy ? this.#policy.policy : "all policies"}`);
    this.#all.hidden = !this.#policy;
    void this.#load();
  }

  session(session: Session): void {
    this.#showParts(session.queues && !session.policies);
    this.#keys.session(session);
  }

  restyle(): void {
    this.#decisions.restyle();
    this.#latency.restyle();
  }

  /** The service is back: what was missed is in its history. */
  reconnected(): void {
    void this.#load();
  }

  tick(tick: Tick): void {
    this.#tiles.allowed.set(count(tick.recent[0]), `${count(tick.totals[0])} in all`);
    this.#tiles.denied.set(count(tick.recent[1]), `${count(tick.totals[1])} in all`);
    this.#tiles.shadow.set(count(tick.recent[2]), `${count(tick.totals[2])} in all`);
    this.#tiles.latency.set(micros(tick.latency_us[1]), `median ${micros(tick.latency_us[0])}`);
    if (tick.queues) this.#showQueues(tick.queues);
    this.#showStore(tick);
    this.#latency.add(tick.at_ms, tick.latency_us);
    if (!this.#policy) this.#decisions.add(tick.at_ms, tick.recent);
    else if (tick.at_ms - this.#asked >= 2_000) {
      this.#asked = tick.at_ms;
      void this.#load();
    }
    this.#showBusiest(tick);
    this.#keys.see(tick);
  }

  #showQueues(sums: QueueSums): void {
    const tiles = this.#queueTiles;
    tiles.waiting.set(count(sums.waiting), `${count(sums.delayed)} delayed`);
    tiles.running.set(count(sums.running), `${count(sums.queues)} ${sums.queues === 1 ? "queue" : "queues"}`);
    tiles.started.set(rate(sums.started), `${rate(sums.done)} done`);
    tiles.oldest.set(sums.oldest_ms > 0 ? duration(sums.oldest_ms) : "none", sums.waiting > 0 ? "in its queue" : "nothing waits");
    tiles.dead.set(count(sums.dead), "failed for good");
    tiles.dead.element.classList.toggle("alarm", sums.dead > 0);
  }

  #showStore(tick: Tick): void {
    const { store, connections } = tick;
    const isDown = tick.troubles.some(({ kind }) => kind === "store_down" || kind === "degraded");
    const isFull = tick.troubles.some(({ kind }) => kind === "pressure");
    this.#tiles.store.set(store.kind === "memory" ? "memory" : "shared",
      store.kind === "memory" ? `${count(store.keys ?? 0)} keys` : isDown ? "does not answer" : "answers");
    this.#tiles.store.element.classList.toggle("alarm", isDown || isFull);
    const facts: [string, string][] = [];
    if (store.kind === "memory" && !this.#isOnlyQueues) {
      const full = store.keys_max ? (store.keys ?? 0) / store.keys_max : 0;
      facts.push(["Room for keys", count(store.keys_max ?? 0)], ["Of which used", `${(full * 100).toFixed(1)} %`],
        ["Keys forgotten early", count(store.forgotten ?? 0)], ["New keys denied for lack of room", count(store.refused ?? 0)]);
    } else if (!this.#isOnlyQueues) {
      facts.push(["Calls the store did not answer", count(store.errors)], ["Decisions made without the store", count(store.degraded)]);
    }
    facts.push(
      ["RESP connections", count(connections.resp)],
      ["HTTP connections", count(connections.http)],
      ["gRPC connections", count(connections.grpc)],
    );
    if (!this.#isOnlyQueues) facts.push(["Keys changed by operators", count(tick.amended_keys)]);
    facts.push(["Configuration", tick.config_error ? "not in force" : "in force"]);
    replace(this.#health, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }

  #showBusiest(tick: Tick): void {
    // A row under the pointer or the focus must not move away from it.
    if (this.#busiest.matches(":hover, :focus-within")) return;
    replace(this.#busiest, table("Decisions of the last second by policy", [
      { title: "Policy", cell: (row) => policyLink(row) },
      { title: "Allowed", numeric: true, cell: (row) => count(row.recent[0]) },
      { title: "Denied", numeric: true, cell: (row) => count(row.recent[1]) },
      { title: "Shadow-denied", numeric: true, minor: true, cell: (row) => count(row.recent[2]) },
      { title: "Chart", minor: true, cell: (row) =>
        h("a", { href: `#overview/${encodeURIComponent(row.domain)}/${encodeURIComponent(row.policy)}` }, "chart") },
    ], tick.busiest, "No decision in the last second."));
  }

  async #load(): Promise<void> {
    const of = this.#policy;
    const query = of ? `?domain=${encodeURIComponent(of.domain)}&policy=${encodeURIComponent(of.policy)}` : "";
    try {
      const past = await call<History>(`/dashboard/history${query}`);
      if (of !== this.#policy) return;
      this.#decisions.set(past.at_ms, [past.allowed, past.denied, past.shadow]);
      this.#latency.set(past.at_ms, [past.p50_us, past.p99_us]);
    } catch {
      // The link says that the service is gone.
    }
  }
}

function tile(name: string, id: string): { element: HTMLElement; set: (value: string, note: string) => void } {
  const value = h("strong", { id: `tile-${id}` }, "–");
  const note = h("small", { id: `tile-${id}-note` });
  return {
    element: h("div", { class: "tile" }, h("span", {}, name), value, note),
    set: (text, more) => {
      say(value, text);
      say(note, more);
    },
  };
}
