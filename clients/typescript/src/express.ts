// A middleware for Express; any router with `(request, response, next)` will do.

import type { Tollway } from "./client.js";
import { PROBLEM, refusal, type LimitOptions } from "./refusal.js";

/** What is used of a request. */
export interface ExpressRequest { ip?: string | undefined }

/** What is used of a response. */
export interface ExpressResponse {
  setHeader(name: string, value: string): unknown;
  statusCode: number;
  end(body: string): unknown;
}

/** Answers 429 where the service denies, and passes its header fields on. */
export function limit<Request extends ExpressRequest>(gate: Tollway, options: LimitOptions<Request>) {
  const key = options.key ?? ((request: Request) => request.ip ?? null);
  return async (request: Request, response: ExpressResponse, next: (error?: unknown) => void): Promise<void> => {
    try {
      const found = await key(request);
      if (found === null) return next();
      const verdict = await gate.check(options.policy, found, options.cost?.(request) ?? 1);
      const refused = verdict.allowed ? null : refusal(verdict, options.policy);
      for (const [name, value] of Object.entries(refused?.headers ?? verdict.headers)) response.setHeader(name, value);
      if (!refused) return next();
      response.statusCode = refused.status;
      response.setHeader("content-type", PROBLEM);
      response.end(JSON.stringify(refused.body));
    } catch (error) {
      next(error);
    }
  };
}
