// The words: charges asked, verdicts answered, and what may go wrong.

/**
 * A limit that comes with the call: the fields of a policy in a configuration. Times are text, such
 * as `1s`.
 */
export interface Limit {
  /**
   * `gcra` unless given, or `calendar-window` if the quota has a civil unit. Text of any kind passes, so that an object
   * may be written before the call: the service says what is wrong with it.
   */
  algorithm?:
    | "gcra"
    | "leaky-bucket"
    | "sliding-window"
    | "fixed-window"
    | "concurrency"
    | "calendar-window"
    | "legacy"
    | (string & {});
  /** In how many parts Redis and Valkey keep each key. */
  split?: number;
  quota?: string;
  buckets?: number;
  anchor?: "epoch" | "first-request";
  size?: number;
  drip_size?: number;
  drip_interval?: string;
  limit?: number;
  lease?: string;
  max?: number;
  duration?: string;
  min_interval?: string;
  /** Above 1 stricter, below 1 laxer. */
  factor?: number | string;
}

/** Units asked of one policy, by its name or as it is, for one key. */
export interface Charge {
  policy: string | Limit;
  key: string;
  /** 1 unless given. */
  cost?: number;
}

/** What became of one charge. */
export interface ChargeVerdict {
  policy: string;
  allowed: boolean;
  limit: number;
  remaining: number;
  resetAfterMs: number;
  /** `null` if allowed, or if no wait helps. */
  retryAfterMs: number | null;
  /** Units of the grace band of a soft limit that are used; `null` if the limit has none. */
  graceUsed: number | null;
}

/** What became of a request: every charge was taken, or none. */
export interface Verdict {
  allowed: boolean;
  deniedBy: string | null;
  /** The owner whose floor and ceiling leave nothing, if the policy has owners. */
  deniedByOwner: string | null;
  charges: readonly ChargeVerdict[];
  /** How long until the same request is allowed; `null` if it is, or if no wait helps. */
  retryAfterMs: number | null;
  /** The service answered without its store. */
  degraded: boolean;
  /** The service did not answer: `onFailure` did. */
  failed: boolean;
  /** Rate-limit header fields to pass on to whoever asked you. */
  headers: Readonly<Record<string, string>>;
}

/** What is said of a key or a pattern. */
export interface OwnQuota {
  policy: string;
  /** `null` if its bytes are no text; they are in `keyHex`. */
  key: string | null;
  keyHex: string;
  quota: string | null;
  /** RFC 3339, as all times here. */
  until: string | null;
  grant: { units: number; until: string } | null;
  note: string;
  /** The name of the token that set it. */
  by: string;
  at: string;
  /** The quota that holds, with what is granted; `null` if none does, for `whyNot`. */
  inForce: string | null;
  whyNot: string | null;
  /** For all nodes, beside the snapshot, or until the process ends. */
  kept: "store" | "file" | "process";
}

/** When a quota or a grant ends, and why there is one. */
export interface Said {
  /** A `Date`, RFC 3339, or `2026-11-20 09:00 Europe/Berlin`. */
  until?: Date | string;
  note?: string;
}

/** What to answer when the service does not. */
export type OnFailure = "allow" | "deny" | "throw";

/** Anything that is not an answer. */
export class TollwayError extends Error {
  override name = "TollwayError";
}

/** The service, or its store, did not answer in time. */
export class Unavailable extends TollwayError {
  override name = "Unavailable";
}

/**
 * The service refuses the request itself: an unknown policy, a wrong token, a cost of zero. A
 * mistake of the caller's: thrown whatever `onFailure` says.
 */
export class Rejected extends TollwayError {
  override name = "Rejected";

  constructor(readonly status: number, readonly detail: string) {
    super(`${status}: ${detail}`);
  }
}
