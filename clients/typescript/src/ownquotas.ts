// Quotas of one's own, for a key or a pattern: what is asked and what is told.

import { checked, detail, refused, type Answered } from "./caller.js";
import type { OwnQuota, Said } from "./words.js";

type WireOwnQuota = Omit<OwnQuota, "keyHex" | "inForce" | "whyNot"> & {
  key_hex: string;
  in_force: string | null;
  why_not: string | null;
};

export function pathOf(policy: string, key?: string): string {
  const start = `/v1/policies/${encodeURIComponent(policy)}/keys`;
  return key === undefined ? start : `${start}/${encodeURIComponent(key)}`;
}

export function bodyOf(words: object, { until, note }: Said): object {
  const end = until instanceof Date ? until.toISOString() : until;
  return { ...words, ...(end !== undefined && { until: end }), ...(note !== undefined && { note }) };
}

/** The JSON of an answer that is one. */
export function answered({ status, text }: Answered): unknown {
  if (status < 200 || status >= 300) throw refused(status, text);
  return checked(text);
}

/** Whether there is no such quota; an unknown policy is a mistake of the caller's. */
export function isMissing({ status, text }: Answered): boolean {
  return status === 404 && detail(text).startsWith("key: ");
}

export function told(answer: unknown): OwnQuota {
  const { key_hex, in_force, why_not, ...same } = answer as WireOwnQuota;
  return { ...same, keyHex: key_hex, inForce: in_force, whyNot: why_not };
}

/** The quotas of a page, and where the next one begins. */
export function page(answer: unknown): { keys: OwnQuota[]; next: string | null } {
  const { keys, next } = answer as { keys: WireOwnQuota[]; next: string | null };
  return { keys: keys.map(told), next };
}
