// A queue of the service: jobs enqueued, leased, settled, and their results.

import { Caller, type CallerOptions } from "./caller.js";
import { JobFailed, LeaseLost, RetryLater, type Enqueued, type Headers, type Job, type NewJob, type Payload } from "./jobs.js";

interface WireLease {
  id: number; group: string; payload?: string; payload_base64?: string; token: string;
  attempt: number; failures: number; priority: number; weight: number; leased_at_ms: number; expires_at_ms: number;
}

interface WireBeat { id: number; attempt: number; lease: "held" | "cancelled" | "lost"; expires_at_ms: number | null }

/** A job to be done, for as long as the lease lasts. */
export class Lease {
  readonly id: number;
  readonly group: string;
  /** Text as text; anything else as bytes. */
  readonly payload: string | Uint8Array;
  readonly attempt: number;
  readonly failures: number;
  readonly priority: number;
  readonly weight: number;
  readonly token: string;
  /** Milliseconds since the epoch by the service's clock; heartbeats move it. */
  expiresAtMs: number;
  /** For how long the lease lasts, from its beginning and from each heartbeat. */
  readonly lastsMs: number;
  /** Somebody has cancelled the job: the work may stop. */
  cancelled = false;
  /** The lease is over: another worker may have the job. */
  lost = false;
  /** What `obey` saw last; it is told with what came of the job. */
  answer: object = {};

  constructor(wire: WireLease) {
    this.id = wire.id;
    this.group = wire.group;
    this.payload = carried(wire.payload, wire.payload_base64) ?? "";
    this.attempt = wire.attempt;
    this.failures = wire.failures;
    this.priority = wire.priority;
    this.weight = wire.weight;
    this.token = wire.token;
    this.expiresAtMs = wire.expires_at_ms;
    this.lastsMs = wire.expires_at_ms - wire.leased_at_ms;
  }

  /** The payload, read as JSON. Nobody checks that it is a `T`: whoever enqueued it knows. */
  json<T = any>(): T {
    return JSON.parse(typeof this.payload === "string" ? this.payload : new TextDecoder().decode(this.payload)) as T;
  }

  /**
   * Looks at an API's answer, such as a `Response`: a refusal (429, or 503 that says when to come
   * back) throws `RetryLater`, and the group waits as long as the header fields say. Of any other
   * answer they are told with what comes of the job: if nothing is left of a limit, the group waits
   * before it is refused.
   */
  obey(answer: { status: number; headers: Headers }, profile?: string): void {
    const later = new RetryLater({ status: answer.status, headers: answer.headers, ...(profile === undefined ? {} : { profile }) });
    if (answer.status === 429 || (answer.status === 503 && later.has("retry-after"))) throw later;
    this.answer = later.wire();
  }
}

/**
 * One queue of a Tollway service. A service that does not answer throws `Unavailable`: give jobs a
 * `key`, and enqueue them again.
 */
export class Queue extends Caller {
  readonly #path: string;

  constructor(readonly name: string, options: CallerOptions = {}) {
    super({ timeoutMs: 5_000, ...options });
    this.#path = `/v1/queues/${encodeURIComponent(name)}`;
  }

  /** Enqueues one job. */
  async enqueue(payload: Payload, job: Omit<NewJob, "payload"> = {}): Promise<Enqueued> {
    return enqueued(await this.#post("jobs", wireJob({ payload, ...job })));
  }

  /** Enqueues several jobs, all or none; at most 1,000. */
  async enqueueAll(jobs: readonly NewJob[]): Promise<Enqueued[]> {
    const answer = (await this.#post("jobs/batch", { jobs: jobs.map(wireJob) })) as { jobs: WireEnqueued[] };
    return answer.jobs.map(enqueued);
  }

  /** What is known about a job. */
  async job(id: number): Promise<Job> {
    return this.#job(id, 0);
  }

  async #job(id: number, waitMs: number): Promise<Job> {
    const path = `${this.#path}/jobs/${id}?wait_ms=${Math.round(waitMs)}`;
    const fields = (await this.call(path, { method: "GET", waitMs })) as Record<string, unknown>;
    const text = (name: string): string | undefined => (typeof fields[name] === "string" ? (fields[name] as string) : undefined);
    return {
      id: fields["id"] as number,
      state: fields["state"] as string,
      group: text("group") ?? "",
      payload: carried(text("payload"), text("payload_base64")) ?? "",
      result: carried(text("result"), text("result_base64")),
      reason: text("reason") ?? null,
      attempt: fields["attempt"] as number,
      failures: fields["failures"] as number,
      fields,
    };
  }

  /** Cancels a job: true if it is gone, false if its worker was asked to stop. */
  async cancel(id: number): Promise<boolean> {
    const answer = (await this.call(`${this.#path}/jobs/${id}`, { method: "DELETE" })) as { cancelled: string };
    return answer.cancelled === "removed";
  }

  /** Waits until a job is done, and returns its result. Throws `JobFailed` if it becomes a dead letter. */
  async result(id: number, timeoutMs = 30_000): Promise<string | Uint8Array | null> {
    const deadline = Date.now() + timeoutMs;
    for (;;) {
      const job = await this.#job(id, Math.min(Math.max(deadline - Date.now(), 0), 20_000));
      if (job.state === "done") return job.result;
      if (job.state !== "waiting" && job.state !== "running") throw new JobFailed(job);
      if (Date.now() >= deadline) throw new Error(`job ${id} is ${job.state} after ${timeoutMs} ms`);
    }
  }

  /** Lets a job that waits start so many milliseconds from now; false if it runs already. */
  async reschedule(id: number, delayMs = 0): Promise<boolean> {
    try {
      await this.#post(`jobs/${id}/reschedule`, { delay_ms: delayMs });
      return true;
    } catch (error) {
      // What the service answers to what cannot be changed any more.
      if (error instanceof LeaseLost) return false;
      throw error;
    }
  }

  /** Up to `max` jobs that may start; waits for the first, for at most a minute. */
  async lease(max = 1, waitMs = 0, worker = ""): Promise<Lease[]> {
    const body = { max, wait_ms: waitMs, worker };
    const answer = (await this.call(`${this.#path}/lease`, { body, waitMs })) as { leases: WireLease[] };
    return answer.leases.map((wire) => new Lease(wire));
  }

  /** The job is done. Throws `LeaseLost` if the lease is over, as the others below do. */
  async ack(lease: Lease, result?: Payload): Promise<void> {
    await this.#post("ack", { token: lease.token, ...lease.answer, ...(result === undefined ? {} : wire("result", result)) });
  }

  /** The attempt failed; without `retry` the job becomes a dead letter at once. */
  async fail(lease: Lease, reason: string, retry = true): Promise<void> {
    await this.#post("fail", { token: lease.token, ...lease.answer, reason, retry });
  }

  /** The API refuses for now: the group waits. */
  async retryLater(lease: Lease, why: RetryLater): Promise<void> {
    await this.#post("retry-later", { token: lease.token, ...why.wire() });
  }

  /** The job was not begun: others may have it at once. */
  async release(lease: Lease): Promise<void> {
    await this.#post("release", { token: lease.token });
  }

  /** Prolongs leases, and notes at each whether it is cancelled or lost. */
  async heartbeat(leases: readonly Lease[]): Promise<void> {
    const body = { leases: leases.map(({ token }) => ({ token })) };
    const answer = (await this.#post("heartbeat", body)) as { leases: WireBeat[] };
    for (const beat of answer.leases) {
      const lease = leases.find(({ id, attempt }) => id === beat.id && attempt === beat.attempt);
      if (lease === undefined) continue;
      lease.lost = beat.lease === "lost";
      lease.cancelled ||= beat.lease === "cancelled";
      lease.expiresAtMs = beat.expires_at_ms ?? lease.expiresAtMs;
    }
  }

  /** Tells how far the work is. */
  async progress(lease: Lease, done: number, total: number): Promise<void> {
    await this.#post("progress", { token: lease.token, done, total });
  }

  #post(call: string, body: object): Promise<unknown> {
    return this.call(`${this.#path}/${call}`, { body });
  }
}

/** After so many milliseconds. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

interface WireEnqueued { id: number; duplicate: boolean; ready: { expected_ms: number } | null }

function enqueued(wire: unknown): Enqueued {
  const { id, duplicate, ready } = wire as WireEnqueued;
  return { id, duplicate, expectedAtMs: ready?.expected_ms ?? null };
}

function wireJob(job: NewJob): object {
  return {
    group: job.group,
    priority: job.priority,
    weight: job.weight,
    delay_ms: job.delayMs,
    start_at_ms: job.startAtMs,
    start_within_ms: job.startWithinMs,
    key: job.key,
    attempts_max: job.attemptsMax,
    backoff_ms: job.backoffMs,
    backoff_max_ms: job.backoffMaxMs,
    ...wire("payload", job.payload),
  };
}

/** A payload or a result as bodies carry it. */
function wire(name: string, value: Payload): Record<string, unknown> {
  if (!(value instanceof Uint8Array)) return { [name]: value };
  const bytes = Array.from(value, (byte) => String.fromCharCode(byte)).join("");
  return { [`${name}_base64`]: btoa(bytes) };
}

function carried(text: string | undefined, base64: string | undefined): string | Uint8Array | null {
  if (base64 !== undefined) return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return text ?? null;
}
