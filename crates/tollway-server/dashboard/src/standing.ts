// How a key stands, in words: whether it is allowed, why, and by which line of which file.

import type { FoundKey, Said, Standing } from "./api";
import { h, type Child } from "./dom";
import { count, duration, keyText, moment } from "./format";

/** The state of a key as a whole, in sentences. */
export function inWords(found: FoundKey): string {
  const rows = found.descriptor ? [found.descriptor, ...found.standings] : found.standings;
  const banned = rows.filter((row) => row.treatment === "banned");
  const words: string[] = [];
  const first = banned[0];
  if (first && banned.length === rows.length) words.push(ban(first.treated_by));
  else if (first) words.push(`${first.policy} denies every request of this key: ${because(first.treated_by)}.`);
  if (rows.some((row) => row.degraded)) words.push("The store does not answer, so what this key has left is not known.");
  const [last] = found.denials;
  if (!last) words.push(first ? "No denial was counted in the last minutes." : "No denial of this key is known.");
  else if (found.rates.denied_1m > 0) words.push(`Denied ${often(found.rates.denied_1m)} in the last minute, the last time at ${moment(last.at_ms)}.`);
  else words.push(`Last denied at ${moment(last.at_ms)}.`);
  for (const row of rows) {
    const held = row.last_denied;
    if (!held || row.treatment === "banned" || row.treatment === "unlimited") continue;
    words.push(`${row.policy}: it asked for ${units(held.cost)}, ${units(row.remaining)} of ${count(row.limit)} ${row.remaining === 1 ? "is" : "are"} there now; ${when(held.allowed_in_ms, held.cost)}.`);
    if (words.length > 4) break;
  }
  return words.join(" ");
}

function often(per_second: number): string {
  const times = Math.max(1, Math.round(per_second * 60));
  return times === 1 ? "once" : `${count(times)} times`;
}

const units = (number: number): string => `${count(number)} ${number === 1 ? "unit" : "units"}`;

function when(allowed_in_ms: number | null, cost: number): string {
  if (allowed_in_ms === null) return `a request of cost ${count(cost)} is never allowed`;
  return `a request of cost ${count(cost)} is allowed ${allowed_in_ms <= 0 ? "now" : `in ${duration(allowed_in_ms)}`}`;
}

function ban(said: Said): string {
  if (said.by !== "operator") return `Banned by the configuration: ${because(said)}. Only a change there lets the key in.`;
  const end = said.ends_at_ms === undefined ? "until it is lifted or this service restarts" : `until ${moment(said.ends_at_ms)}`;
  return `Banned by an operator, on this node, ${end}. All policies deny it.`;
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

/** The quota, and where it and the treatment stand. */
export function ruleOf(row: Standing): HTMLElement {
  const lines: Child[] = [row.quota];
  const { limited_by: limit, treated_by: treated } = row;
  const at = limit.at ?? "";
  if (limit.by === "operator") lines.push(h("small", {}, "its own, set by an operator on this node"));
  else if (limit.by === "override") lines.push(h("small", {}, `override for ${limit.pattern_hex === null ? "this key" : keyText(limit.pattern_hex)}, ${at}`));
  else if (at) lines.push(h("small", {}, at));
  if (treated.by !== "policy") lines.push(h("small", {}, because(treated)));
  return h("span", { class: "rule" }, ...lines);
}
