// The first view: how many decisions, how fast, which keys, how the store is.

import { call, type History, type QueueSums, type Ranked, type Session, type Tick } from "./api";
import { Chart } from "./chart";
import { h, replace, say, table } from "./dom";
import { count, duration, keyText, micros, rate } from "./format";
import { policyLink, Rising, type View } from "./view";

const NAMES = { allowed: "allowed", denied: "denied", shadow: "shadow-denied" } as const;

export class Overview implements View {
  readonly title = "Overview";
  readonly element = h("section", { "aria-labelledby": "overview-title" });
  #policy: { domain: string; policy: string } | null = null;
  #session: Session | null = null;
  #asked = 0;
  readonly #degraded = new Rising();
  readonly #refused = new Rising();
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
  readonly #keys = h("div", { class: "pair" });
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
    this.#ofPolicies = [
      h("div", { class: "card" }, h("div", { class: "bar" }, this.#subject, this.#all), this.#decisions.element),
      time,
      h("div", { class: "card" }, h("h3", {}, "Busiest policies"), this.#busiest),
      this.#keys,
    ];
    const [decisions, , ...rest] = this.#ofPolicies;
    replace(this.element,
      h("h2", { id: "overview-title", class: "hidden" }, "Overview"), this.#tileRow, this.#onlyQueues, decisions,
      h("div", { class: "pair" }, time, h("div", { class: "card" }, h("h3", {}, "Store and service"), this.#health)),
      ...rest);
    this.#showParts(false);
  }

  /** Shows what belongs to decisions, or to queues where there is nothing to decide. */
  #showParts(onlyQueues: boolean): void {
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
    this.#session = session;
    this.#showParts(session.queues && !session.policies);
    if (session.role !== "admin") {
      replace(this.#keys, h("p", { class: "note" }, "The busiest and the most denied keys are shown to the role admin."));
    }
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
    if (tick.top && this.#session?.role === "admin") {
      replace(this.#keys, ranking("Most denied keys", "Denied", tick.top.denied), ranking("Busiest keys", "Allowed", tick.top.allowed));
    }
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
    const isDegraded = this.#degraded.see(store.degraded, tick.at_ms);
    const full = store.keys_max ? (store.keys ?? 0) / store.keys_max : 0;
    this.#tiles.store.set(store.kind === "memory" ? "memory" : "shared",
      store.kind === "memory" ? `${count(store.keys ?? 0)} keys` : isDegraded ? "does not answer" : "answers");
    const isFull = this.#refused.see(store.refused ?? 0, tick.at_ms);
    this.#tiles.store.element.classList.toggle("alarm", isDegraded || isFull);
    const facts: [string, string][] = [
      ["Failures of the store", count(store.errors)],
      ["Decisions made without it", count(store.degraded)],
      ["Connections: RESP, HTTP, gRPC", `${connections.resp}, ${connections.http}, ${connections.grpc}`],
      ["Keys changed by operators", count(tick.amended_keys)],
      ["Configuration", tick.config_error ? `stale: ${tick.config_error}` : "current"],
    ];
    if (store.kind === "memory") {
      facts.unshift(["Room for keys", `${(full * 100).toFixed(1)} % of ${count(store.keys_max ?? 0)} used`],
        ["Forgotten under pressure, refused", `${count(store.forgotten ?? 0)}, ${count(store.refused ?? 0)}`]);
    }
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

function ranking(title: string, what: string, keys: Ranked[]): HTMLElement {
  return h("div", { class: "card" }, h("h3", {}, title), table(title, [
    { title: "Key", cell: (row) => h("a", { class: "key", href: `#keys/${row.key}` }, keyText(row.key)) },
    { title: `${what}/min`, numeric: true, cell: (row) => count(row.rate_1m) },
    { title: "over 5 min", numeric: true, minor: true, cell: (row) => count(Math.ceil(row.rate_5m)) },
  ], keys.slice(0, 10), "None in the last five minutes."));
}
