// How a key stands, in words: whether it is allowed, why, and by which line of which file.

import type { FoundKey, Said, Standing } from "./api";
import { h, type Child } from "./dom";
import { count, duration, keyText, moment } from "./format";

/** Sentences for so many policies: the others stand in the table. */
const POLICIES_MAX = 3;

/** The state of a key, in sentences: as a whole, and under the policies that denied it. */
export function inWords(found: FoundKey): string[] {
  const rows = found.descriptor ? [found.descriptor, ...found.standings] : found.standings;
  const banned = rows.filter((row) => row.treatment === "banned");
  const words: string[] = [];
  const [first] = banned;
  if (first && banned.length === rows.length) words.push(ban(first.treated_by));
  else for (const row of banned.slice(0, POLICIES_MAX)) words.push(`Under ${row.policy}, every request is denied: ${because(row.treated_by)}.`);
  words.push(denied(found));
  if (rows.some((row) => row.degraded)) words.push("The store does not answer, so what this key has left is not known.");
  const held = rows.filter((row) => row.treatment === "enforced" || row.treatment === "shadow");
  for (const row of held.filter((row) => row.last_denied).slice(0, POLICIES_MAX)) words.push(asked(row));
  return words;
}

function denied(found: FoundKey): string {
  const [last] = found.denials;
  if (!last) return "No denial of this key is known.";
  if (found.rates.denied_1m <= 0) return `Last denied at ${moment(last.at_ms)}.`;
  return `Denied ${often(found.rates.denied_1m)} in the last minute, the last time at ${moment(last.at_ms)}.`;
}

/** What the key last asked for in vain, and when it would get it. */
function asked(row: Standing): string {
  const [cost, wait_ms] = [row.last_denied?.cost ?? 1, row.last_denied?.allowed_in_ms ?? null];
  const left = `Under ${row.policy}, it last asked for ${count(cost)} ${cost === 1 ? "unit" : "units"} and ${count(row.remaining)} of ${count(row.limit)} ${row.remaining === 1 ? "is" : "are"} left.`;
  const then = wait_ms === null ? "is never allowed" : wait_ms <= 0 ? "is allowed now" : `is allowed in ${duration(wait_ms)}`;
  return `${left} A request of cost ${count(cost)} ${then}.`;
}

function often(per_second: number): string {
  const times = Math.max(1, Math.round(per_second * 60));
  return times === 1 ? "once" : `${count(times)} times`;
}

function ban(said: Said): string {
  if (said.by !== "operator") return `Banned by the configuration: ${because(said)}. Only a change there lets the key in.`;
  const end = said.ends_at_ms === undefined ? "until it is lifted" : `until ${moment(said.ends_at_ms)}`;
  return `Banned by an operator, ${end}. All policies deny it.`;
}

/** Who says how a key is treated. */
function because(said: Said): string {
  const at = said.at ? ` in ${said.at}` : "";
  const entry = said.pattern_hex === null ? "" : ` (${keyText(said.pattern_hex)})`;
  switch (said.by) {
    case "operator": return "an operator said so";
    case "list": return `it is on a list of the policy${entry}${at}`;
    case "list of all": return `it is on a list for all policies${entry}${at}`;
    case "trial": return `the policy is on trial${at}`;
    case "trial of all": return `all policies are on trial${at}`;
    case "limit of zero": return `its limit is zero${at}`;
    default: return "";
  }
}

/** The state under one policy. */
export function stateOf(row: Standing): HTMLElement {
  if (row.treatment === "banned") return h("span", { class: "badge bad" }, "banned");
  if (row.treatment === "unlimited") return h("span", { class: "badge" }, "never limited");
  if (row.degraded) return h("span", { class: "badge bad" }, "store does not answer");
  const wait = row.last_denied?.allowed_in_ms;
  const cost = row.last_denied?.cost ?? 1;
  // A request of one unit may be allowed while those that the key really sends are not.
  const isHeld = row.allowed && row.last_denied !== null && wait !== 0;
  const text = isHeld ? `denied at cost ${count(cost)}` : row.allowed ? "allowed" : "denied";
  return h("span", {}, h("span", { class: row.allowed && !isHeld ? "badge good" : "badge bad" }, text),
    row.treatment === "shadow" && h("span", { class: "badge" }, "on trial: never denied"));
}

/** A line of a file as there is room for it: the words above the table have it in full. */
const brief = (at: string): string => at.slice(at.lastIndexOf("/") + 1);

const place = (text: string, at: string | null): HTMLElement => h("small", { title: at ?? undefined }, text);

/** Who has set a quota of its own, and when it ends. */
function ownBy({ own, pattern_hex: pattern }: Said): string {
  const whose = pattern === null ? "its own" : `that of ${keyText(pattern)}`;
  const ends = own?.until ? `, until ${own.until}` : "";
  const more = own?.grant ? `, ${count(own.grant.units)} units granted until ${own.grant.until}` : "";
  return `${whose}, set by ${own?.by ?? "an operator"}${ends}${more}${own?.note ? ` (${own.note})` : ""}`;
}

/** The quota, and where it and the treatment stand. */
export function ruleOf(row: Standing): HTMLElement {
  const lines: Child[] = [row.quota];
  const { limited_by: limit, treated_by: treated } = row;
  const at = brief(limit.at ?? "");
  if (limit.by === "operator") lines.push(h("small", {}, ownBy(limit)));
  else if (limit.by === "override") lines.push(place(`override for ${limit.pattern_hex === null ? "this key" : keyText(limit.pattern_hex)}, ${at}`, limit.at));
  else if (at) lines.push(place(at, limit.at));
  if (treated.by !== "policy") lines.push(place(because({ ...treated, at: treated.at && brief(treated.at) }), treated.at));
  return h("span", { class: "rule" }, ...lines);
}
