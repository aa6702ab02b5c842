// Numbers, durations and keys as people read them.

export const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (number: number): string => (number < 100_000 ? whole.format(number) : short.format(number));

/** A number with what is counted, in the singular or the plural. */
export const some = (number: number, one: string, many: string): string => `${count(number)} ${number === 1 ? one : many}`;

/** Something per second, with a decimal where that says more. */
export const rate = (number: number): string => (number < 10 && !Number.isInteger(number) ? number.toFixed(1) : count(number));

export function micros(us: number): string {
  if (us <= 0) return "–";
  const [value, unit]: [number, string] = us < 1_000 ? [us, "µs"] : us < 1_000_000 ? [us / 1_000, "ms"] : [us / 1_000_000, "s"];
  return `${value < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

export function duration(ms: number): string {
  if (ms <= 0) return "now";
  if (ms < 1_000) return `${ms} ms`;
  const units: [string, number][] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  let rest = Math.ceil(ms / 1_000);
  if (rest < 10) return `${(ms / 1_000).toFixed(1)} s`;
  const parts: string[] = [];
  for (const [name, seconds] of units) {
    if (rest >= seconds && parts.length < 2) {
      parts.push(`${Math.floor(rest / seconds)} ${name}`);
      rest %= seconds;
    }
  }
  return parts.join(" ");
}

/** Something per second, told per minute. */
export function perMinute(rate: number): string {
  const number = rate * 60;
  return number < 9.5 ? String(Number(number.toFixed(1))) : count(Math.round(number));
}

/** How long ago something was. */
export const ago = (at_ms: number, now_ms: number): string => (now_ms - at_ms < 1_000 ? "just now" : `${duration(Math.floor((now_ms - at_ms) / 1_000) * 1_000).replace(".0 s", " s")} ago`);

/** A moment as one reads it: the time, and the day if that is another one. */
export function moment(at_ms: number): string {
  const [at, now] = [new Date(at_ms), new Date()];
  const day = at.toDateString() === now.toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return day + clock(at_ms);
}

export const clock = (at_ms: number): string => new Date(at_ms).toLocaleTimeString("en-GB");

function bytes(hex: string): Uint8Array {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/**
 * A key as text. A key is whatever bytes a stranger sent: what cannot be seen (controls, marks that
 * turn the writing direction, odd spaces) and what is not UTF-8 is spelled out.
 */
export function keyText(hex: string): string {
  const raw = bytes(hex);
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
    return visible(text);
  } catch {
    return Array.from(raw, (byte) => (byte === 0x5c ? "\\\\" : byte < 0x20 || byte > 0x7e ? escaped(byte) : String.fromCharCode(byte))).join("");
  }
}

/** Text with what cannot be seen spelled out. */
export function visible(text: string): string {
  return text.replace(/[\\\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, (char) =>
    char === "\\" ? "\\\\" : Array.from(new TextEncoder().encode(char), escaped).join(""));
}

const escaped = (byte: number): string => `\\x${byte.toString(16).padStart(2, "0")}`;

/** The inverse of `keyText`: what somebody typed, `\xNN` for a byte and `\\` for a backslash. */
export function keyHex(text: string): string {
  const parts: number[] = [];
  const encoder = new TextEncoder();
  for (const piece of text.match(/\\x[0-9a-fA-F]{2}|\\\\|[^]/gu) ?? []) {
    if (piece.length === 4 && piece.startsWith("\\x")) parts.push(parseInt(piece.slice(2), 16));
    else parts.push(...encoder.encode(piece === "\\\\" ? "\\" : piece));
  }
  return parts.map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
