// The client: one request per verb, by fetch, within a timeout.

import { Rejected, Unavailable, type Charge, type ChargeVerdict, type OnFailure, type Verdict } from "./words.js";

export interface Options {
  /** Where the service is; `http://127.0.0.1:8080` unless given. */
  url?: string;
  token?: string;
  /** Bounds a whole call, in milliseconds; 250 unless given. */
  timeoutMs?: number;
  /** `allow` unless given. */
  onFailure?: OnFailure;
  /** Another `fetch`: with an agent, or of a test. */
  fetch?: typeof fetch;
}

interface WireCharge {
  policy: string;
  allowed: boolean;
  limit: number;
  remaining: number;
  reset_after_ms: number;
  retry_after_ms?: number | null;
}

interface WireVerdict {
  allowed: boolean;
  denied_by: string | null;
  degraded?: boolean;
  charges: WireCharge[];
  reservation?: string;
}

interface Answer { body: WireVerdict; headers: Headers }

/** Asks a Tollway service. */
export class Tollway {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #timeoutMs: number;
  readonly #onFailure: OnFailure;
  readonly #fetch: typeof fetch;

  constructor(options: Options = {}) {
    this.#url = (options.url ?? "http://127.0.0.1:8080").replace(/\/+$/, "");
    this.#headers = { "content-type": "application/json" };
    if (options.token) this.#headers["authorization"] = `Bearer ${options.token}`;
    this.#timeoutMs = options.timeoutMs ?? 250;
    this.#onFailure = options.onFailure ?? "allow";
    this.#fetch = options.fetch ?? ((...args) => fetch(...args));
  }

  /** Takes the units if they are there. */
  check(policy: string, key: string, cost = 1): Promise<Verdict> {
    return this.checkAll([{ policy, key, cost }]);
  }

  /** Takes every charge, or none. */
  checkAll(charges: readonly Charge[]): Promise<Verdict> {
    return this.#ask("/v1/check", charges);
  }

  /** What a check would answer; takes nothing. */
  peek(policy: string, key: string, cost = 1): Promise<Verdict> {
    return this.#ask("/v1/peek", [{ policy, key, cost }]);
  }

  /** Gives units back. Throws `Unavailable` if the service does not answer. */
  async refund(policy: string, key: string, cost = 1): Promise<void> {
    await this.#call("/v1/refund", { policy, key, cost });
  }

  /** Forgets the key under the policy; needs the role admin. */
  async reset(policy: string, key: string): Promise<void> {
    await this.#call("/v1/reset", { policy, key });
  }

  /** Takes units now, to be settled by `commit` at their real cost. */
  async reserve(policy: string, key: string, cost: number): Promise<Reservation> {
    try {
      const answer = await this.#call("/v1/reserve", { policy, key, cost });
      return new Reservation(verdict(answer), answer.body.reservation, (path, body) => this.#call(path, body));
    } catch (error) {
      return new Reservation(this.#fallBack(error), undefined, () => Promise.resolve());
    }
  }

  async #ask(path: string, charges: readonly Charge[]): Promise<Verdict> {
    try {
      return verdict(await this.#call(path, charges.length === 1 ? charges[0] : { charges }));
    } catch (error) {
      return this.#fallBack(error);
    }
  }

  #fallBack(error: unknown): Verdict {
    if (!(error instanceof Unavailable) || this.#onFailure === "throw") throw error;
    const allowed = this.#onFailure === "allow";
    return { allowed, deniedBy: null, charges: [], retryAfterMs: null, degraded: false, failed: true, headers: {} };
  }

  async #call(path: string, body: unknown): Promise<Answer> {
    let response: Response;
    let text: string;
    try {
      // The signal bounds the reading of the body too.
      const signal = AbortSignal.timeout(this.#timeoutMs);
      response = await this.#fetch(this.#url + path, { method: "POST", headers: this.#headers, body: JSON.stringify(body), signal });
      text = await response.text();
    } catch (error) {
      throw new Unavailable("the service did not answer", { cause: error });
    }
    if (response.status >= 500) throw new Unavailable(`the service answered ${response.status}`);
    const parsed = parse(text);
    if (response.status === 200 || response.status === 429) {
      if (parsed === null) throw new Unavailable("the answer is not JSON");
      return { body: parsed as WireVerdict, headers: response.headers };
    }
    throw new Rejected(response.status, String((parsed as { detail?: unknown } | null)?.detail ?? ""));
  }
}

/** Units taken, to be settled once. */
export class Reservation {
  #name: string | undefined;

  constructor(readonly verdict: Verdict, name: string | undefined, readonly settle: (path: string, body: unknown) => Promise<unknown>) {
    this.#name = name;
  }

  /** Settles at the real cost, or as reserved. */
  async commit(cost?: number): Promise<void> {
    await this.#settle("/v1/commit", cost === undefined ? {} : { costs: [cost] });
  }

  /** Gives everything back. */
  async cancel(): Promise<void> {
    await this.#settle("/v1/cancel", {});
  }

  async #settle(path: string, body: object): Promise<void> {
    const reservation = this.#name;
    this.#name = undefined;
    if (reservation !== undefined) await this.settle(path, { reservation, ...body });
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function verdict({ body, headers }: Answer): Verdict {
  const charges = body.charges.map((charge): ChargeVerdict => ({
    policy: charge.policy,
    allowed: charge.allowed,
    limit: charge.limit,
    remaining: charge.remaining,
    resetAfterMs: charge.reset_after_ms,
    retryAfterMs: charge.retry_after_ms ?? null,
  }));
  const denied = charges.filter((charge) => !charge.allowed);
  const isHopeless = denied.length === 0 || denied.some((charge) => charge.retryAfterMs === null);
  const told: Record<string, string> = {};
  headers.forEach((value, name) => {
    if (/^(retry-after$|ratelimit|x-ratelimit)/.test(name)) told[name] = value;
  });
  return {
    allowed: body.allowed,
    deniedBy: body.denied_by,
    charges,
    retryAfterMs: isHopeless ? null : Math.max(...denied.map((charge) => charge.retryAfterMs ?? 0)),
    degraded: body.degraded ?? false,
    failed: false,
    headers: told,
  };
}
