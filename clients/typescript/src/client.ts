// The client of limits: one request per verb.

import { Caller, checked, refused, type CallerOptions } from "./caller.js";
import { answered, bodyOf, isMissing, page, pathOf, told } from "./ownquotas.js";
import { Unavailable, type Charge, type ChargeVerdict, type Limit, type OnFailure, type OwnQuota, type Said, type Verdict } from "./words.js";

export interface Options extends CallerOptions {
  /** `allow` unless given. */
  onFailure?: OnFailure;
}

interface WireCharge {
  policy: string;
  allowed: boolean;
  limit: number;
  remaining: number;
  reset_after_ms: number;
  retry_after_ms?: number | null;
  grace_used?: number;
}

interface WireVerdict {
  allowed: boolean;
  denied_by: string | null;
  denied_by_owner?: string | null;
  degraded?: boolean;
  charges: WireCharge[];
  reservation?: string;
}

interface Answer { body: WireVerdict; headers: Headers }

/** Asks a Tollway service; a call takes 250 ms at most unless told otherwise. */
export class Tollway extends Caller {
  readonly #onFailure: OnFailure;

  constructor(options: Options = {}) {
    super(options);
    this.#onFailure = options.onFailure ?? "allow";
  }

  /** Takes the units if they are there. */
  check(policy: string | Limit, key: string, cost = 1): Promise<Verdict> {
    return this.checkAll([{ policy, key, cost }]);
  }

  /** Takes every charge, or none. */
  checkAll(charges: readonly Charge[]): Promise<Verdict> {
    return this.#ask("/v1/check", charges);
  }

  /** What a check would answer; takes nothing. */
  peek(policy: string | Limit, key: string, cost = 1): Promise<Verdict> {
    return this.#ask("/v1/peek", [{ policy, key, cost }]);
  }

  /** Gives units back. Throws `Unavailable` if the service does not answer. */
  async refund(policy: string | Limit, key: string, cost = 1): Promise<void> {
    await this.#call("/v1/refund", wireCharge({ policy, key, cost }));
  }

  /** Forgets the key under the policy; needs the role admin. */
  async reset(policy: string | Limit, key: string): Promise<void> {
    await this.#call("/v1/reset", wireCharge({ policy, key }));
  }

  /** Takes units now, to be settled by `commit` at their real cost. */
  async reserve(policy: string | Limit, key: string, cost: number): Promise<Reservation> {
    try {
      const answer = await this.#call("/v1/reserve", wireCharge({ policy, key, cost }));
      return new Reservation(verdict(answer), answer.body.reservation, (path, body) => this.#call(path, body));
    } catch (error) {
      return new Reservation(this.#fallBack(error), undefined, () => Promise.resolve());
    }
  }

  /**
   * Gives a key a quota of its own, or the keys of a pattern (`acme-*`) theirs; needs the role admin. What was used
   * stays used.
   */
  async setQuota(policy: string, key: string, quota: string, said: Said = {}): Promise<OwnQuota> {
    return told(answered(await this.exchange(pathOf(policy, key), { method: "PUT", body: bodyOf({ quota }, said) })));
  }

  /** What was said of exactly this key or pattern; needs the role admin. */
  async quota(policy: string, key: string): Promise<OwnQuota | null> {
    const answer = await this.exchange(pathOf(policy, key), { method: "GET" });
    return isMissing(answer) ? null : told(answered(answer));
  }

  /** All quotas of keys and patterns under a policy, in order; needs the role admin. */
  async *quotas(policy: string): AsyncGenerator<OwnQuota, void, undefined> {
    let after: string | null = null;
    do {
      const path: string = pathOf(policy) + (after === null ? "" : `?after=${after}`);
      const { keys, next } = page(answered(await this.exchange(path, { method: "GET" })));
      yield* keys;
      after = next;
    } while (after !== null);
  }

  /** Takes quota and grant away; whether there was one. Needs the role admin. */
  async removeQuota(policy: string, key: string): Promise<boolean> {
    const answer = await this.exchange(pathOf(policy, key), { method: "DELETE" });
    if (isMissing(answer)) return false;
    answered(answer);
    return true;
  }

  /** Gives so many used units back, or so many more until a time; needs the role admin. */
  async grant(policy: string, key: string, units: number, said: Said = {}): Promise<void> {
    answered(await this.exchange(`${pathOf(policy, key)}/grant`, { body: bodyOf({ units }, said) }));
  }

  async #ask(path: string, charges: readonly Charge[]): Promise<Verdict> {
    try {
      const asked = charges.map(wireCharge);
      return verdict(await this.#call(path, asked.length === 1 ? asked[0] : { charges: asked }));
    } catch (error) {
      return this.#fallBack(error);
    }
  }

  #fallBack(error: unknown): Verdict {
    if (!(error instanceof Unavailable) || this.#onFailure === "throw") throw error;
    const allowed = this.#onFailure === "allow";
    return {
      allowed,
      deniedBy: null,
      deniedByOwner: null,
      charges: [],
      retryAfterMs: null,
      degraded: false,
      failed: true,
      headers: {},
    };
  }

  async #call(path: string, body: unknown): Promise<Answer> {
    const { status, headers, text } = await this.exchange(path, { body });
    if (status !== 200 && status !== 429) throw refused(status, text);
    return { body: checked(text) as WireVerdict, headers };
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

function wireCharge({ policy, ...rest }: Charge): object {
  return typeof policy === "string" ? { policy, ...rest } : { limit: policy, ...rest };
}

function verdict({ body, headers }: Answer): Verdict {
  const charges = body.charges.map((charge): ChargeVerdict => ({
    policy: charge.policy,
    allowed: charge.allowed,
    limit: charge.limit,
    remaining: charge.remaining,
    resetAfterMs: charge.reset_after_ms,
    retryAfterMs: charge.retry_after_ms ?? null,
    graceUsed: charge.grace_used ?? null,
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
    deniedByOwner: body.denied_by_owner ?? null,
    charges,
    retryAfterMs: isHopeless ? null : Math.max(...denied.map((charge) => charge.retryAfterMs ?? 0)),
    degraded: body.degraded ?? false,
    failed: false,
    headers: told,
  };
}
