// A small chart of the units that a key will have, if it asks for nothing.

import type { Standing } from "./api";
import { h, type Child } from "./dom";
import { count, duration } from "./format";

const WIDTH = 120;
const HEIGHT = 32;
const SVG = "http://www.w3.org/2000/svg";

/** The chart, with what it shows in words; words alone where there is nothing to come. */
export function toCome(row: Standing): Child {
  const [first, last] = [row.to_come[0], row.to_come.at(-1)];
  if (!first || !last) return "–";
  if (first === last) return row.remaining >= row.limit ? "all are there" : "–";
  const [end_ms, most] = last;
  const half = row.to_come.find(([, units]) => units * 2 >= most) ?? last;
  const label = `${count(first[1])} now, ${count(half[1])} in ${duration(half[0])}, ${count(most)} in ${duration(end_ms)}`;
  const scale = ([ms, units]: [number, number]): string =>
    `${((ms / Math.max(1, end_ms)) * (WIDTH - 2) + 1).toFixed(1)},${(HEIGHT - 2 - (units / Math.max(1, row.limit)) * (HEIGHT - 4)).toFixed(1)}`;
  const line = row.to_come.map(scale);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": label, class: "tocome" },
    element("polygon", { points: `1,${HEIGHT - 2} ${line.join(" ")} ${WIDTH - 1},${HEIGHT - 2}` }),
    element("polyline", { points: line.join(" ") }));
  return h("span", { class: "tocome-cell" }, svg, h("small", { "aria-hidden": "true" }, `${count(most)} in ${duration(end_ms)}`));
}

function element(name: string, attributes: Record<string, string | number>, ...children: Element[]): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made as SVGElement;
}
