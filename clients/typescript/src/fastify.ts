// A plugin for Fastify: limits every route of the instance it is registered on.

import type { Tollway } from "./client.js";
import { PROBLEM, refusal, type LimitOptions } from "./refusal.js";

/** What is used of a request. */
export interface FastifyRequestLike { ip: string }

/** What is used of a reply. */
export interface FastifyReplyLike {
  header(name: string, value: string): FastifyReplyLike;
  code(status: number): FastifyReplyLike;
  type(type: string): FastifyReplyLike;
  send(body: string): unknown;
}

interface FastifyLike {
  addHook(name: "onRequest", hook: (request: never, reply: never) => Promise<unknown>): unknown;
}

/** Answers 429 where the service denies, and passes its header fields on. */
export function limit<Request extends FastifyRequestLike>(gate: Tollway, options: LimitOptions<Request>) {
  const key = options.key ?? ((request: Request) => request.ip);
  const hook = async (request: Request, reply: FastifyReplyLike): Promise<unknown> => {
    const found = await key(request);
    if (found === null) return undefined;
    const verdict = await gate.check(options.policy, found, options.cost?.(request) ?? 1);
    const refused = verdict.allowed ? null : refusal(verdict, options.policy);
    for (const [name, value] of Object.entries(refused?.headers ?? verdict.headers)) reply.header(name, value);
    return refused ? reply.code(refused.status).type(PROBLEM).send(JSON.stringify(refused.body)) : undefined;
  };
  const plugin = async (fastify: FastifyLike): Promise<void> => {
    fastify.addHook("onRequest", hook as never);
  };
  // Hooks of a plugin hold for its own routes only, unless it says that it is not a scope.
  return Object.assign(plugin, { [Symbol.for("skip-override")]: true });
}
