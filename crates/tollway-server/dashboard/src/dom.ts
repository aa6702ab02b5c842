// Elements from names, attributes and text. Text is only ever text: nothing here reads markup.

export type Child = Node | string | number | null | undefined | false;
type Value = string | number | boolean | undefined | ((event: Event) => void);

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, Value> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, String(value));
  }
  append(element, children);
  return element;
}

export function append(element: Element, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function replace(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  append(element, children);
}

/** Sets the text only if it differs: screen readers announce what changes. */
export function say(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

export function byId<T extends HTMLElement>(id: string): T {
  const element = document.getElementById(id);
  if (!element) throw new Error(`no element ${id}`);
  return element as T;
}

export interface Column<Row> {
  title: string;
  /** A number, aligned to the right. */
  numeric?: boolean;
  /** Left out on a phone. */
  minor?: boolean;
  cell: (row: Row) => Child;
}

/** A table whose first column names the row. */
export function table<Row>(caption: string, columns: Column<Row>[], rows: Row[], none: string): HTMLElement {
  const last = columns.filter((column) => !column.minor).at(-1);
  const looks = (column: Column<Row>) =>
    [column.numeric ? "number" : "", column.minor ? "minor" : "", column === last ? "last" : ""].join(" ").trim() || undefined;
  const head = columns.map((column) => h("th", { scope: "col", class: looks(column) }, column.title));
  const body = rows.map((row) =>
    h("tr", {}, ...columns.map((column, index) =>
      h(index === 0 ? "th" : "td", {
        class: looks(column),
        scope: index === 0 ? "row" : undefined,
        "data-title": index === 0 ? undefined : column.title,
      }, column.cell(row)))));
  if (rows.length === 0) body.push(h("tr", {}, h("td", { colspan: columns.length, class: "none" }, none)));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body)));
}

/** Runs `task` once nobody has called for a while. */
export function settled(task: () => void, wait_ms = 200): () => void {
  let timer = 0;
  return () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(task, wait_ms);
  };
}
