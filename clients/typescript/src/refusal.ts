// The answer to a request that is not allowed: 429 with a problem body (RFC 9457).

import type { Verdict } from "./words.js";

export const PROBLEM = "application/problem+json";

export interface Refusal { status: 429; headers: Record<string, string>; body: object }

export function refusal(verdict: Verdict, policy: string): Refusal {
  const headers = { ...verdict.headers };
  if (verdict.retryAfterMs !== null) headers["retry-after"] ??= String(Math.ceil(verdict.retryAfterMs / 1_000));
  return {
    status: 429,
    headers,
    body: {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Quota Exceeded",
      status: 429,
      "violated-policies": [verdict.deniedBy ?? policy],
    },
  };
}

/** Which policy a request is charged to, and as whom. */
export interface LimitOptions<Request> {
  policy: string;
  /**
   * The key of a request; `null` lets it through unlimited. By default the address that the
   * framework tells: behind a proxy, tell the framework which proxies to trust.
   */
  key?: (request: Request) => string | null | Promise<string | null>;
  cost?: (request: Request) => number;
}
