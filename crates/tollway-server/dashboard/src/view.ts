// What every view can do, and the parts they share.

import { ApiError, type Session, type Tick } from "./api";
import { h, say } from "./dom";

export interface View {
  readonly title: string;
  readonly element: HTMLElement;
  /** Becomes the view that is seen; the argument is what follows its name in the address. */
  show(argument: string): void;
  session?(session: Session): void;
  tick?(tick: Tick): void;
  restyle?(): void;
  reconnected?(): void;
}

export function policyLink(of: { domain: string; policy: string }): HTMLElement {
  const name = of.domain ? `${of.domain} · ${of.policy}` : of.policy;
  return h("a", { href: `#policies/${encodeURIComponent(of.domain)}/${encodeURIComponent(of.policy)}` }, name);
}

/** Previous and next, and where one is. */
export class Pager {
  readonly #where = h("span", { class: "where" });
  readonly #back = h("button", { type: "button", click: () => this.#go(-1) }, "Previous");
  readonly #on = h("button", { type: "button", click: () => this.#go(1) }, "Next");
  readonly element = h("nav", { class: "pager" }, this.#back, this.#where, this.#on);
  offset = 0;

  /** `of` names what is paged: two navigations of one view must not have the same name. */
  constructor(readonly size: number, of: string, readonly onChange: () => void) {
    this.element.setAttribute("aria-label", `Pages of ${of}`);
  }

  showing(matched: number, shown: number): void {
    const from = matched === 0 ? 0 : this.offset + 1;
    say(this.#where, `${from}–${this.offset + shown} of ${matched}`);
    this.#back.disabled = this.offset === 0;
    this.#on.disabled = this.offset + shown >= matched;
  }

  #go(direction: number): void {
    this.offset = Math.max(0, this.offset + direction * this.size);
    this.onChange();
  }
}

/** As [Pager], for lists of which the service knows only the way on. */
export class CursorPager {
  readonly #where = h("span", { class: "where" });
  readonly #back = h("button", { type: "button", click: () => this.#turn(null) }, "Previous");
  readonly #on = h("button", { type: "button", click: () => this.#turn(this.#next) }, "Next");
  readonly element = h("nav", { class: "pager" }, this.#back, this.#where, this.#on);
  /** Where each page seen so far began. */
  #cursors: string[] = [""];
  #next: string | null = null;

  constructor(readonly size: number, of: string, readonly onChange: () => void, readonly parameter = "cursor") {
    this.element.setAttribute("aria-label", `Pages of ${of}`);
  }

  /** What to ask for. */
  get query(): string {
    const cursor = this.#cursors.at(-1) ?? "";
    return cursor ? `max=${this.size}&${this.parameter}=${encodeURIComponent(cursor)}` : `max=${this.size}`;
  }

  restart(): void {
    this.#cursors = [""];
  }

  showing(next: string | null, shown: number, total?: number): void {
    this.#next = next;
    this.#back.disabled = this.#cursors.length === 1;
    this.#on.disabled = next === null;
    const from = (this.#cursors.length - 1) * this.size;
    say(this.#where, `${shown ? from + 1 : 0}–${from + shown}${total === undefined ? "" : ` of ${total}`}`);
  }

  #turn(cursor: string | null): void {
    if (cursor === null) this.#cursors.pop();
    else this.#cursors.push(cursor);
    this.onChange();
  }
}

/** A line that tells how something went; read out when it changes. */
export class Notice {
  readonly element = h("p", { role: "status", class: "notice" });

  tell(text: string, isBad = false): void {
    this.element.classList.toggle("bad", isBad);
    say(this.element, text);
  }

  fail(error: unknown): void {
    this.tell(error instanceof ApiError ? error.message : String(error), true);
  }

  /** Tells what came of a change; whether it was tried, and not given up at the question before it. */
  async outcome(change: () => Promise<string | null>): Promise<boolean> {
    try {
      const done = await change();
      if (done === null) return false;
      this.tell(done);
    } catch (error) {
      this.fail(error);
    }
    return true;
  }
}
