// What keys of a durable policy used in their windows: page by page, and as a file for bills.

import { call } from "./api";
import { h, replace, settled, table } from "./dom";
import { keyHex, keyText, some, whole } from "./format";
import { CursorPager, Notice } from "./view";

interface Row { key: string | null; key_hex: string; start: string; end: string; units: number }
interface Page { usage: Row[]; after: string | null }

const PAGE = 25;
/** A browser holds a file in memory before it is saved; what is longer is for the command line. */
const EXPORTED_MAX = 100_000;

export class Usage {
  readonly #notice = new Notice();
  readonly #key = h("input", { id: "usage-key", type: "search", placeholder: "all keys", autocomplete: "off", spellcheck: "false" });
  readonly #list = h("div", { id: "usage-list" });
  readonly #pager = new CursorPager(PAGE, "usage", () => void this.load(), "after");
  readonly element = h("div", { id: "usage" },
    h("div", { class: "bar apart" }, h("h3", {}, "Usage"), h("label", { for: "usage-key" }, "Key"), this.#key, this.#pager.element,
      h("button", { type: "button", click: () => void this.#save("csv") }, "Export CSV"),
      h("button", { type: "button", click: () => void this.#save("jsonl") }, "Export JSON lines")),
    this.#notice.element, this.#list);

  constructor(readonly policy: string) {
    this.#key.addEventListener("input", settled(() => {
      this.#pager.restart();
      void this.load();
    }));
  }

  async load(): Promise<void> {
    try {
      const page = await call<Page>(this.#path(this.#pager.query));
      this.#notice.tell("");
      this.#pager.showing(page.after, page.usage.length);
      replace(this.#list, table("Usage by key and window", [
        { title: "Key", cell: key },
        { title: "From", cell: (row: Row) => time(row.start) },
        { title: "To", cell: (row) => time(row.end) },
        { title: "Units", numeric: true, cell: (row) => whole.format(row.units) },
      ], page.usage, "Nothing was used."));
    } catch (error) {
      this.#notice.fail(error);
    }
  }

  #path(query: string): string {
    const key = this.#key.value ? `&key_hex=${keyHex(this.#key.value)}` : "";
    return `/v1/usage/${encodeURIComponent(this.policy)}?${query}${key}`;
  }

  /** Saves all rows that are asked for. A link could not send the token. */
  async #save(format: "csv" | "jsonl"): Promise<void> {
    try {
      const rows: Row[] = [];
      let after: string | null = null;
      do {
        const page: Page = await call<Page>(this.#path(`max=1000${after ? `&after=${after}` : ""}`));
        rows.push(...page.usage);
        after = page.after;
        this.#notice.tell(`${some(rows.length, "row", "rows")} read …`);
      } while (after && rows.length < EXPORTED_MAX);
      const lines = format === "csv" ? ["policy,key,key_hex,start,end,units", ...rows.map((row) => this.#csv(row))] : rows.map((row) => JSON.stringify({ policy: this.policy, ...row }));
      const file = new Blob(lines.map((line) => `${line}\n`), { type: format === "csv" ? "text/csv" : "application/jsonl" });
      const link = h("a", { href: URL.createObjectURL(file), download: `usage-${this.policy}.${format}` });
      link.click();
      URL.revokeObjectURL(link.href);
      const rest = after ? " The rest is for the command line: tollway usage export." : "";
      this.#notice.tell(`${some(rows.length, "row", "rows")} exported.${rest}`, after !== null);
    } catch (error) {
      this.#notice.fail(error);
    }
  }

  #csv(row: Row): string {
    return [quoted(this.policy), quoted(row.key ?? ""), row.key_hex, row.start, row.end, row.units].join(",");
  }
}

/** No key is empty: such a row is of those for which a shared store had no room. */
function key(row: Row): HTMLElement {
  return row.key_hex === "" ? h("em", {}, "all other keys") : h("code", { class: "key" }, keyText(row.key_hex));
}

/** Windows begin and end at whole seconds, as good as always; the rest is in the export. */
const time = (text: string): string => text.replace("T", " ").replace(/(\.\d+)?Z$/, " UTC");

/** A field as RFC 4180 has it. */
const quoted = (text: string): string => (/^[A-Za-z0-9][A-Za-z0-9\-_.:@/+]*$/.test(text) || text === "" ? text : `"${text.replaceAll('"', '""')}"`);
