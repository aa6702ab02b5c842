// A worker: leases jobs, hands each to a function, and tells what came of it.

import { GiveUp, LeaseLost, RetryLater, type Payload } from "./jobs.js";
import { pause, type Lease, type Queue } from "./queue.js";
import { Unavailable } from "./words.js";

/** What it returns becomes the job's result, unless it is `undefined`. */
export type Handler = (lease: Lease) => Payload | undefined | void | Promise<Payload | undefined | void>;

export interface WorkerOptions {
  /** Jobs that run at once; 1 unless given. */
  concurrency?: number;
  /** Time between two signs of life: a third of the queue's lease unless given. */
  heartbeatMs?: number;
  /** How long one call waits for a job, and so how long `stop` takes beside the jobs that run; 2,000 unless given. */
  waitMs?: number;
  name?: string;
  /** Between attempts to reach a service that does not answer, the last one again and again; growing to 5,000 unless given. */
  pausesMs?: readonly number[];
}

/** Between attempts to reach a service that does not answer. */
const PAUSES_MS = [100, 200, 500, 1_000, 2_000, 5_000];
/** For how long what came of a job is told to a service that does not answer. */
const REPORT_FOR_MS = 60_000;
/** How soon a heartbeat is repeated that the service has not heard. */
const BEAT_AGAIN_MS = 500;
/** How often a worker that is told to stop tells it. */
const REPORTS_LAST = 5;
/** The longest that a timer waits. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/**
 * Works on the jobs of a queue until it is stopped. What a handler throws is a failure, and the job
 * is tried again; `RetryLater` lets the group wait, `GiveUp` makes a dead letter of the job.
 */
export class Worker {
  readonly #options: Required<Omit<WorkerOptions, "heartbeatMs">>;
  readonly #heartbeatMs: number | undefined;
  readonly #running = new Map<Lease, Promise<void>>();
  /** When leases are prolonged next, and the timer that waits for it. */
  #beatAtMs = Infinity;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #stopped = false;
  /** What no other attempt mends, such as a wrong token. */
  #mistake: unknown;

  constructor(readonly queue: Queue, readonly handler: Handler, options: WorkerOptions = {}) {
    this.#options = { concurrency: 1, waitMs: 2_000, name: "", pausesMs: PAUSES_MS, ...options };
    this.#heartbeatMs = options.heartbeatMs;
  }

  /** Works until `stop`. Jobs that run are finished; none is begun any more. */
  async run(): Promise<void> {
    try {
      await this.#lease();
      await Promise.all(this.#running.values());
      if (this.#mistake !== undefined) throw this.#mistake;
    } finally {
      clearTimeout(this.#timer);
      this.#beatAtMs = Infinity;
    }
  }

  /** As `run`, and stops at SIGTERM or SIGINT: for programs that are nothing but a worker. */
  async runUntilTold(): Promise<void> {
    const stop = (): void => this.stop();
    const told = ["SIGTERM", "SIGINT"];
    const { process } = globalThis as unknown as { process: { on(name: string, f: () => void): void; off(name: string, f: () => void): void } };
    told.forEach((name) => process.on(name, stop));
    try {
      await this.run();
    } finally {
      told.forEach((name) => process.off(name, stop));
    }
  }

  /** Begins no other job. */
  stop(): void {
    this.#stopped = true;
  }

  async #lease(): Promise<void> {
    const { concurrency, waitMs, name } = this.#options;
    for (let failures = 0; !this.#stopped; ) {
      const free = concurrency - this.#running.size;
      if (free === 0) {
        await Promise.race(this.#running.values());
        continue;
      }
      let leases: Lease[];
      try {
        leases = await this.queue.lease(free, waitMs, name);
        failures = 0;
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error;
        await this.#pause(failures);
        failures += 1;
        continue;
      }
      for (const lease of leases) {
        this.#running.set(lease, this.#work(lease).finally(() => this.#running.delete(lease)));
      }
      this.#planBeat(leases);
    }
  }

  #pause(failures: number): Promise<void> {
    const { pausesMs } = this.#options;
    return pause(pausesMs[Math.min(failures, pausesMs.length - 1)] ?? 1_000);
  }

  async #work(lease: Lease): Promise<void> {
    // It may have come while the worker was told to stop.
    const report = this.#stopped ? () => this.queue.release(lease) : await this.#handle(lease);
    const giveUpAtMs = Date.now() + REPORT_FOR_MS;
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await report();
      } catch (error) {
        if (error instanceof LeaseLost) return; // Others have the job.
        if (!(error instanceof Unavailable)) {
          this.#mistake ??= error;
          return this.stop();
        }
        // Untold, the lease ends and the job is run again.
        if (Date.now() >= giveUpAtMs || (this.#stopped && attempt >= REPORTS_LAST)) return;
        await this.#pause(attempt);
      }
    }
  }

  /** What is to be told of a job after its handler had it. */
  async #handle(lease: Lease): Promise<() => Promise<void>> {
    const { queue } = this;
    try {
      const result = await this.handler(lease);
      JSON.stringify(result); // What cannot be sent is a failure of the handler.
      return () => queue.ack(lease, result ?? undefined);
    } catch (error) {
      if (error instanceof RetryLater) return () => queue.retryLater(lease, error);
      const reason = String(error).slice(0, 1_000);
      return () => queue.fail(lease, reason, !(error instanceof GiveUp));
    }
  }

  /** Has these leases prolonged in time, unless all are before that. */
  #planBeat(leases: readonly Lease[]): void {
    if (leases.length === 0) return;
    this.#beatIn(Math.min(...leases.map(({ lastsMs }) => this.#heartbeatMs ?? lastsMs / 3), TIMER_MAX_MS));
  }

  #beatIn(waitMs: number): void {
    if (Date.now() + waitMs >= this.#beatAtMs) return;
    clearTimeout(this.#timer);
    this.#beatAtMs = Date.now() + waitMs;
    this.#timer = setTimeout(() => void this.#beat(), waitMs);
  }

  async #beat(): Promise<void> {
    const leases = [...this.#running.keys()].filter(({ lost }) => !lost);
    this.#beatAtMs = Infinity;
    this.#planBeat(leases);
    if (leases.length === 0) return;
    try {
      await this.queue.heartbeat(leases);
    } catch {
      // The service may be back before the lease ends; whatever is wrong with the call, the reports will tell.
      if (this.#running.size > 0) this.#beatIn(BEAT_AGAIN_MS);
    }
  }
}
