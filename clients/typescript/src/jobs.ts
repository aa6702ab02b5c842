// The words of queues: jobs, and what may become of them.

import { TollwayError } from "./words.js";

/** Text and bytes are kept as they are; anything else as its JSON. */
export type Payload = string | Uint8Array | number | boolean | null | readonly unknown[] | { readonly [name: string]: unknown };

/** Header fields: of a `Response`, or as an object. */
export type Headers = { forEach(each: (value: string, name: string) => void): void } | Readonly<Record<string, string>>;

/** A job to be enqueued. */
export interface NewJob {
  payload: Payload;
  group?: string;
  priority?: number;
  weight?: number;
  delayMs?: number;
  /** Milliseconds since the epoch. */
  startAtMs?: number;
  /** If it cannot start for so long, it is dead, or dropped if the queue says so. */
  startWithinMs?: number;
  /** A second job with the same key is not enqueued: with one, a call can be repeated. */
  key?: string;
  attemptsMax?: number;
  backoffMs?: number;
  backoffMaxMs?: number;
}

/** A job that the queue has. */
export interface Enqueued {
  id: number;
  /** There was one with this key: it is that one. */
  duplicate: boolean;
  /** When it is expected to start, in milliseconds since the epoch. */
  expectedAtMs: number | null;
}

/** What is known about a job. */
export interface Job {
  id: number;
  /** `waiting`, `running`, `done` or `dead`. */
  state: string;
  group: string;
  payload: string | Uint8Array;
  result: string | Uint8Array | null;
  /** Why it is a dead letter. */
  reason: string | null;
  attempt: number;
  failures: number;
  /** All that the service answered. */
  fields: Readonly<Record<string, unknown>>;
}

/** The lease is over: it expired, or the job was settled before. */
export class LeaseLost extends TollwayError {
  override name = "LeaseLost";
}

/** The job that was waited for is a dead letter, or gone. */
export class JobFailed extends TollwayError {
  override name = "JobFailed";

  constructor(readonly job: Job) {
    super(`job ${job.id} is ${job.state}${job.reason === null ? "" : `: ${job.reason}`}`);
  }
}

/** Thrown by a handler: no other attempt helps, and the job becomes a dead letter. */
export class GiveUp extends TollwayError {
  override name = "GiveUp";
}

/** How long a group is to wait: so long, or as the header fields of an API's answer say. */
export type Refusal = { waitMs: number } | { status?: number; headers: Headers; profile?: string };

/**
 * Thrown by a handler: the API refuses for now, and the whole group is to wait. The refusal is not
 * charged to the job as a failure.
 */
export class RetryLater extends TollwayError {
  override name = "RetryLater";
  readonly #told: Record<string, string> = {};

  constructor(readonly refusal: Refusal) {
    super("retry later");
    if (!("headers" in refusal)) return;
    const note = (value: string, name: string): void => {
      // Cookies are nobody's business but the API's and its caller's.
      if (name.toLowerCase() !== "set-cookie") this.#told[name.toLowerCase()] = value;
    };
    const { headers } = refusal;
    if (typeof headers.forEach === "function") headers.forEach(note);
    else for (const [name, value] of Object.entries(headers)) note(String(value), name);
  }

  /** Whether there is a header field of this lower-case name. */
  has(name: string): boolean {
    return name in this.#told;
  }

  /** As the service is told. */
  wire(): object {
    const refusal = this.refusal;
    if ("waitMs" in refusal) return { wait_ms: Math.max(0, Math.round(refusal.waitMs)) };
    return { headers: this.#told, status: refusal.status ?? 429, profile: refusal.profile };
  }
}
