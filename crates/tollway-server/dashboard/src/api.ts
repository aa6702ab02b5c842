// What the page asks of its service, with the token if there is one.

export type Three = [allowed: number, denied: number, shadow: number];

export interface Tick {
  at_ms: number;
  recent: Three;
  totals: Three;
  latency_us: [p50: number, p99: number];
  busiest: { domain: string; policy: string; recent: Three }[];
  store: Store;
  connections: { resp: number; http: number; grpc: number };
  config_error: string | null;
  amended_keys: number;
  queues: QueueSums | null;
  troubles: Trouble[];
  top?: { allowed: TopKey[]; denied: TopKey[] };
}

/** What is wrong with the service now. */
export type Trouble =
  | { kind: "draining" | "queue_store_full" }
  | { kind: "store_down"; since_ms: number; reason: string; unanswered: number }
  | { kind: "queue_store_down"; since_ms: number; reason: string }
  | { kind: "degraded"; decisions: number }
  | { kind: "queue_stuck"; queue: string; why: "paused" | "no_worker" | "none_ends"; waiting: number; running: number; oldest_ms: number }
  | { kind: "config_stale"; reason: string }
  | { kind: "xds_down"; since_ms: number; has_rules: boolean; reason: string }
  | { kind: "xds_refused"; version: string; reason: string }
  | { kind: "pressure"; forgotten: number; refused: number; fill: number }
  | { kind: "clock_off"; off_ms: number }
  | { kind: "clock_jumped"; jump_ms: number }
  | { kind: "snapshot_old"; age_ms: number; reason: string | null };

export interface Store {
  kind: "memory" | "shared";
  /** Whether a shared store answers. */
  up?: boolean;
  errors: number;
  degraded: number;
  keys?: number;
  keys_max?: number;
  forgotten?: number;
  refused?: number;
}

/** The sums over all queues; started and done per second. */
export interface QueueSums {
  queues: number;
  waiting: number;
  delayed: number;
  running: number;
  dead: number;
  started: number;
  done: number;
  oldest_ms: number;
}

export type Reason = "exhausted" | "banned" | "too_costly" | "no_room" | "degraded";

/** A decision on a key: when, under which policy, at what cost. */
export interface Decided { at_ms: number; domain: string; policy: string; cost: number }

/** A denial, or several that were alike within ten seconds. */
export interface Denial extends Decided { reason: Reason; times: number; retry_after_ms: number | null }

/** Decisions on a key per second, over the last minute and the last five. */
export interface Rates { allowed_1m: number; allowed_5m: number; denied_1m: number; denied_5m: number }

export interface TopKey extends Rates { key_hex: string; last_allowed: Decided | null; last_denied: Denial | null }

export interface Session {
  role: "read" | "check" | "admin";
  open: boolean;
  /** Whether the store of the policies is one that other nodes use too. */
  shared_store: boolean;
  /** Where quotas of single keys are kept. */
  own_quotas: "store" | "file" | "process";
  version: string;
  upstream: boolean;
  queues: boolean;
  policies: boolean;
}

/** Whether whoever looks may change anything: not without a token, even where none is needed to look. */
export const mayChange = (session: Session | null): boolean => session !== null && session.role === "admin" && !session.open;

/** Why nothing can be changed. */
export const whyNot = (session: Session | null): string =>
  session?.open ? "Changes need a token: start the service with TOLLWAY_TOKEN." : "Changes need the role admin.";

export interface History {
  at_ms: number[];
  allowed: number[];
  denied: number[];
  shadow: number[];
  p50_us: number[];
  p99_us: number[];
}

export interface PolicyRow {
  domain: string;
  policy: string;
  in_force: boolean;
  /** Whether it is kept what keys used in their windows. */
  usage: boolean;
  totals: Three;
  recent: Three;
  config: {
    algorithm: string;
    quota: string;
    limit: number;
    on_store_error: string;
    shadow: boolean;
    overrides: number;
    gate_key: string;
  } | null;
}

/** Who says so: a policy, an override, a list, a trial, an operator; and in which line of which file. */
export interface Said { by: string; at: string | null; pattern_hex: string | null; ends_at_ms?: number; own?: OwnQuota }

/** What was said of one key or pattern while the service runs. */
export interface OwnQuota { until: string | null; grant: { units: number; until: string } | null; note: string; by: string }

export interface Standing {
  domain: string;
  policy: string;
  quota: string;
  own_quota: boolean;
  treatment: "enforced" | "shadow" | "unlimited" | "banned";
  treated_by: Said;
  limited_by: Said;
  allowed: boolean;
  limit: number;
  remaining: number;
  retry_after_ms: number | null;
  reset_after_ms: number;
  degraded: boolean;
  /** Milliseconds from now, and units that will be there then. */
  to_come: [number, number][];
  last_denied: { at_ms: number; cost: number; allowed_in_ms: number | null } | null;
}

export interface FoundKey {
  banned: boolean;
  rates: Rates;
  denials: Denial[];
  descriptor: Standing | null;
  matched: number;
  standings: Standing[];
}

/** An answer that is not one of the expected: with the status, 0 if there was none at all. */
export class ApiError extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

const TOKEN = "tollway-token";
const PATIENCE_MS = 10_000;

export const token = {
  get: (): string => sessionStorage.getItem(TOKEN) ?? "",
  set: (text: string): void => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
};

function fields(): Record<string, string> {
  return token.get() ? { authorization: `Bearer ${token.get()}` } : {};
}

/** Called when the service asks for a token, or for another one. */
export const unauthorized: { tell: () => void } = { tell: () => undefined };

export async function call<T>(path: string, body?: unknown, accept: number[] = []): Promise<T> {
  return ask<T>(body === undefined ? "GET" : "POST", path, body, accept);
}

/** Changes what the body names, and leaves the rest. */
export async function change<T>(path: string, body: unknown): Promise<T> {
  return ask<T>("PATCH", path, body, []);
}

/** Takes something away. */
export async function remove<T>(path: string): Promise<T> {
  return ask<T>("DELETE", path, undefined, []);
}

async function ask<T>(method: string, path: string, body: unknown, accept: number[]): Promise<T> {
  const init: RequestInit = { method, headers: fields(), signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" };
  if (body !== undefined) {
    const headers = { ...fields(), "content-type": "application/json" };
    Object.assign(init, { headers, body: JSON.stringify(body) });
  }
  let answer: Response;
  try {
    answer = await fetch(path, init);
  } catch {
    throw new ApiError(0, "The service does not answer.");
  }
  if (answer.status === 401) unauthorized.tell();
  if (!answer.ok && !accept.includes(answer.status)) throw new ApiError(answer.status, await detail(answer));
  return (await answer.json()) as T;
}

async function detail(answer: Response): Promise<string> {
  try {
    const problem = (await answer.json()) as { title?: string; detail?: string };
    return problem.detail ?? problem.title ?? `Status ${answer.status}`;
  } catch {
    return `Status ${answer.status}`;
  }
}

export type Link = "connecting" | "live" | "lost" | "locked";

/** The stream of events, opened again whenever it ends. */
export class Live {
  #stop: AbortController | null = null;
  #attempt = 0;
  #timer = 0;

  constructor(readonly onTick: (tick: Tick) => void, readonly onLink: (link: Link) => void) {}

  /** Opens the stream, or opens it anew. */
  start(): void {
    window.clearTimeout(this.#timer);
    this.#stop?.abort();
    this.#stop = new AbortController();
    void this.#run(this.#stop);
  }

  async #run(stop: AbortController): Promise<void> {
    // A peer that vanished without a word is found by its silence: there is an event every second.
    let watchdog = window.setTimeout(() => stop.abort(), PATIENCE_MS);
    const heard = () => {
      window.clearTimeout(watchdog);
      watchdog = window.setTimeout(() => stop.abort(), PATIENCE_MS);
    };
    let locked = false;
    try {
      // EventSource cannot send a token.
      const answer = await fetch("/dashboard/events", { headers: fields(), signal: stop.signal, cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) {
        locked = true;
        unauthorized.tell();
      } else if (answer.ok && answer.body) {
        this.onLink("live");
        this.#attempt = 0;
        await this.#read(answer.body, heard);
      }
    } catch {
      // Told below: however the stream ended, it is to be opened again.
    }
    window.clearTimeout(watchdog);
    if (this.#stop !== stop) return;
    this.onLink(locked ? "locked" : "lost");
    if (locked) return;
    const wait_ms = Math.min(5_000, 250 * 2 ** this.#attempt++);
    this.#timer = window.setTimeout(() => this.start(), wait_ms);
  }

  async #read(body: ReadableStream<Uint8Array>, heard: () => void): Promise<void> {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      text += decoder.decode(value, { stream: true });
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const data = text.slice(0, end).split("\n").find((line) => line.startsWith("data: "));
        text = text.slice(end + 2);
        if (data) this.onTick(JSON.parse(data.slice(6)) as Tick);
      }
    }
  }
}
