// Upstream buckets: what a proxy of this project believes that others still allow.

import { ApiError, call } from "./api";
import { h, replace, table } from "./dom";
import { count, duration } from "./format";
import { Notice, type View } from "./view";

interface Bucket { bucket: string; limit: number | null; remaining: number | null; reset_in_ms: number | null; queue: number }

export class Upstream implements View {
  readonly title = "Upstream";
  readonly element = h("section", { "aria-labelledby": "upstream-title" });
  readonly #notice = new Notice();
  readonly #buckets = h("div", { id: "bucket-list" });

  constructor() {
    replace(this.element, h("div", { class: "card" }, h("h2", { id: "upstream-title" }, "Upstream buckets"), this.#notice.element, this.#buckets));
  }

  show(): void {
    void this.#load();
  }

  reconnected(): void {
    void this.#load();
  }

  async #load(): Promise<void> {
    try {
      const found = await call<{ buckets: Bucket[] }>("/dashboard/upstream");
      this.#notice.tell("");
      replace(this.#buckets, table("Buckets", [
        { title: "Bucket", cell: (row: Bucket) => h("code", { class: "key" }, row.bucket) },
        { title: "Remaining", numeric: true, cell: (row) => (row.remaining === null ? "unknown" : count(row.remaining)) },
        { title: "Limit", numeric: true, cell: (row) => (row.limit === null ? "unknown" : count(row.limit)) },
        { title: "Resets in", numeric: true, cell: (row) => (row.reset_in_ms === null ? "–" : duration(row.reset_in_ms)) },
        { title: "Queue", numeric: true, cell: (row) => count(row.queue) },
      ], found.buckets, "No bucket yet."));
    } catch (error) {
      replace(this.#buckets);
      const isAbsent = error instanceof ApiError && error.status === 404;
      if (isAbsent) this.#notice.tell("No proxy is configured: start the service with --proxy-admin ADDRESS.");
      else this.#notice.fail(error);
    }
  }
}
