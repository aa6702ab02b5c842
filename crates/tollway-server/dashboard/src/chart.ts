// A chart of the last five minutes, in the page's colours.

import uPlot from "uplot";

export interface Line { label: string; colour: string; value: (number: number) => string }

const HEIGHT = 220;
const POINTS_MAX = 300;
/** Between two times on the axis, which are told in whole seconds. */
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300];

export class Chart {
  #plot: uPlot | null = null;
  #data: (number | null)[][];
  readonly #observer: ResizeObserver;

  /**
   * `least` is the least end of the value axis; with `isLog` each step on it is ten times the one
   * below, so that one slow second does not flatten the others, and a value of 0 is a gap.
   */
  constructor(readonly element: HTMLElement, readonly lines: Line[], readonly unit: string, readonly least: number, readonly isLog = false) {
    this.#data = [[], ...lines.map(() => [])];
    this.#observer = new ResizeObserver(() => this.#fit());
    this.#observer.observe(element);
    element.setAttribute("role", "img");
  }

  /** Shows these columns: times in milliseconds, then one per line. */
  set(at_ms: number[], columns: number[][]): void {
    this.#data = [at_ms.map((ms) => ms / 1_000), ...columns.map((column) => column.map((value) => this.#point(value)))];
    this.#draw();
  }

  /** Adds one point at the right. */
  add(at_ms: number, values: number[]): void {
    const last = this.#data[0]?.at(-1) ?? 0;
    if (at_ms / 1_000 <= last) return;
    [at_ms / 1_000, ...values.map((value) => this.#point(value))].forEach((value, index) => {
      const column = this.#data[index] ?? [];
      column.push(value);
      if (column.length > POINTS_MAX) column.shift();
    });
    this.#draw();
  }

  #point(value: number): number | null {
    return this.isLog && value <= 0 ? null : value;
  }

  /** Draws everything anew, in the colours that hold now. */
  restyle(): void {
    this.#plot?.destroy();
    this.#plot = null;
    this.#draw();
  }

  #draw(): void {
    const latest = this.lines.map((line, index) => `${line.label} ${line.value(this.#data[index + 1]?.at(-1) ?? 0)}`);
    this.element.setAttribute("aria-label", `Last five minutes, ${this.unit}. Now: ${latest.join(", ")}.`);
    // Axes without a point on them would tell times and values that nobody measured.
    if (!this.element.isConnected || this.element.clientWidth === 0 || this.#data[0]?.length === 0) return;
    if (this.#plot) this.#plot.setData(this.#data as uPlot.AlignedData);
    else this.#plot = new uPlot(this.#options(), this.#data as uPlot.AlignedData, this.element);
    // Without a pointer on it the legend tells the latest values.
    const last = (this.#data[0]?.length ?? 0) - 1;
    if ((this.#plot.cursor.left ?? -1) < 0 && last >= 0) this.#plot.setLegend({ idx: last });
  }

  #fit(): void {
    const width = this.element.clientWidth;
    if (width === 0) return;
    if (this.#plot) this.#plot.setSize({ width, height: HEIGHT });
    else this.#draw();
  }

  /** Whole powers of ten around the values. */
  #decades(min: number | null, max: number | null): [number, number] {
    const [low, high] = [min ?? 1, Math.max(max ?? 1, this.least)];
    return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high))];
  }

  /** What stands beside a line of the grid; none where uPlot leaves it out. */
  #tick(split: number | null): string {
    if (split === null) return "";
    return split === 0 ? "0" : this.lines[0]?.value(split) ?? String(split);
  }

  /** The page's colours as a canvas needs them: resolved for the theme that holds, and as a tint. */
  #palette(): ((name: string) => string)[] {
    const style = getComputedStyle(this.element);
    const resolved = (colour: string) => {
      this.element.style.color = colour;
      const told = style.color;
      this.element.style.color = "";
      return told;
    };
    return [
      (name) => resolved(`var(--${name})`),
      (name) => resolved(`color-mix(in srgb, var(--${name}) 13%, transparent)`),
    ];
  }

  #options(): uPlot.Options {
    const [colour = String, faint = String] = this.#palette();
    const axis: uPlot.Axis = {
      stroke: colour("quiet"),
      grid: { stroke: colour("rule"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    return {
      width: this.element.clientWidth,
      height: HEIGHT,
      padding: [8, 26, 0, 0],
      cursor: { y: false },
      scales: { y: this.isLog ? { distr: 3, range: (_plot, min, max) => this.#decades(min, max) } : { range: (_plot, _min, max) => [0, Math.max(this.least, max * 1.1)] } },
      axes: [
        { ...axis, size: 32, space: 70, incrs: STEPS_S, values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, grid: { ...axis.grid, filter: (_plot, splits) => splits.map((split) => (this.isLog && !Number.isInteger(Math.log10(split)) ? null : split)) }, size: 58, values: (_plot, splits) => splits.map((split) => this.#tick(split)) },
      ],
      series: [
        { label: "time", value: "{HH}:{mm}:{ss}" },
        ...this.lines.map((line): uPlot.Series => ({
          label: line.label,
          stroke: colour(line.colour),
          fill: faint(line.colour),
          width: 1.5,
          points: { show: false },
          value: (_plot, value) => (value === null ? "–" : line.value(value)),
        })),
      ],
    };
  }
}
