// A call: one request by fetch, within a timeout.

import { LeaseLost } from "./jobs.js";
import { Rejected, Unavailable } from "./words.js";

export interface CallerOptions {
  /** Where the service is; `http://127.0.0.1:8080` unless given. */
  url?: string;
  token?: string;
  /** Bounds a whole call, in milliseconds. */
  timeoutMs?: number;
  /** Another `fetch`: with an agent, or of a test. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** `POST` unless given. */
  method?: string;
  body?: unknown;
  /** How long the service may wait before it answers. */
  waitMs?: number;
}

/** What was answered, whatever it was. */
export interface Answered { status: number; headers: Headers; text: string }

/** Calls a Tollway service. */
export class Caller {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #timeoutMs: number;
  readonly #fetch: typeof fetch;

  constructor(options: CallerOptions) {
    this.#url = (options.url ?? "http://127.0.0.1:8080").replace(/\/+$/, "");
    this.#headers = { "content-type": "application/json" };
    if (options.token) this.#headers["authorization"] = `Bearer ${options.token}`;
    this.#timeoutMs = options.timeoutMs ?? 250;
    this.#fetch = options.fetch ?? ((...args) => fetch(...args));
  }

  /** The JSON of an answer that is one. */
  protected async call(path: string, options: CallOptions): Promise<unknown> {
    const { status, text } = await this.exchange(path, options);
    if (status >= 200 && status < 300) return checked(text);
    if (status === 409) throw new LeaseLost(detail(text));
    throw refused(status, text);
  }

  protected async exchange(path: string, { method = "POST", body, waitMs = 0 }: CallOptions): Promise<Answered> {
    try {
      // The signal bounds the reading of the body too.
      const signal = AbortSignal.timeout(this.#timeoutMs + waitMs);
      const content = body === undefined ? {} : { body: JSON.stringify(body) };
      const response = await this.#fetch(this.#url + path, { method, headers: this.#headers, signal, ...content });
      return { status: response.status, headers: response.headers, text: await response.text() };
    } catch (error) {
      throw new Unavailable("the service did not answer", { cause: error });
    }
  }
}

/** A text that must be JSON. */
export function checked(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Unavailable("the answer is not JSON");
  }
}

/** Why an answer is none. */
export function refused(status: number, text: string): Unavailable | Rejected {
  if (status >= 500) return new Unavailable(`the service answered ${status}`);
  return new Rejected(status, detail(text));
}

/** What a problem says about itself. */
export function detail(text: string): string {
  try {
    return String((JSON.parse(text) as { detail?: unknown } | null)?.detail ?? "");
  } catch {
    return "";
  }
}
