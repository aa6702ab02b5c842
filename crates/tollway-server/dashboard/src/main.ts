// The page: which view is seen, who is looking, and whether the service is there.

import { call, Live, token, unauthorized, type Link, type Session, type Tick } from "./api";
import { byId, replace, say } from "./dom";
import { Keys } from "./keys";
import { Overview } from "./overview";
import { Policies } from "./policies";
import { Queues } from "./queues";
import { Banners } from "./troubles";
import { Upstream } from "./upstream";
import type { View } from "./view";

const views: Record<string, View> = {
  overview: new Overview(),
  keys: new Keys(),
  policies: new Policies(),
  queues: new Queues(),
  upstream: new Upstream(),
};

const main = byId("main");
const link = byId("link");
const banners = new Banners(byId("banner"), byId("alert"));
const dialog = byId<HTMLDialogElement>("token-dialog");
let current: View | null = null;
let seen = false;
/** Whether the service has queues and nothing to decide: then they are what one comes for. */
let onlyQueues = false;

function navigate(): void {
  const [name = "", ...rest] = location.hash.slice(1).split("/");
  if (name === "main") return;
  const view = views[name] ?? (onlyQueues ? views.queues : views.overview);
  if (!view) return;
  if (view !== current) {
    replace(main, view.element);
    // After the first look the focus follows, so that a screen reader reads the new view.
    if (seen) main.focus();
  }
  seen = true;
  current = view;
  document.title = `${view.title} · Tollway`;
  for (const anchor of document.querySelectorAll<HTMLAnchorElement>("nav[aria-label=Views] a")) {
    const isCurrent = views[anchor.hash.slice(1)] === view;
    if (isCurrent) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  view.show(rest.join("/"));
}

function showTick(tick: Tick): void {
  lastTick_ms = tick.at_ms;
  banners.show(tick.troubles);
  current?.tick?.(tick);
}
let lastTick_ms = 0;

let wasLost = false;
function showLink(state: Link): void {
  const texts: Record<Link, string> = {
    connecting: "connecting", live: "live", lost: "connection lost", locked: "token needed",
  };
  link.dataset["state"] = state;
  document.body.classList.toggle("stale", state === "lost" || state === "locked");
  say(link, texts[state]);
  if (state === "lost") {
    wasLost = true;
    banners.lost(lastTick_ms);
  }
  if (state === "live") {
    banners.show([]);
    if (wasLost) {
      wasLost = false;
      void greet();
      current?.reconnected?.();
    }
  }
}

async function greet(): Promise<void> {
  try {
    const session = await call<Session>("/dashboard/session");
    for (const view of Object.values(views)) view.session?.(session);
    byId("token-button").hidden = session.open;
    const before = onlyQueues;
    onlyQueues = session.queues && !session.policies;
    if (before !== onlyQueues && location.hash === "") navigate();
  } catch {
    // Without an answer the link says so; without a token the dialog does.
  }
}

const live = new Live(showTick, showLink);

function askToken(why: string): void {
  say(byId("token-why"), why);
  byId<HTMLInputElement>("token").value = "";
  byId("token-forget").hidden = !token.get();
  if (!dialog.open) dialog.showModal();
}

unauthorized.tell = () => {
  showLink("locked");
  askToken(token.get() ? "This token is no longer accepted." : "Enter an access token.");
};

function begin(): void {
  dialog.close();
  void greet();
  live.start();
  if (current) navigate();
}

dialog.addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId<HTMLInputElement>("token").value.trim());
  begin();
});
byId("token-cancel").addEventListener("click", () => dialog.close());
byId("token-forget").addEventListener("click", () => {
  token.set("");
  begin();
});
byId("token-button").addEventListener("click", () => askToken("Use another token, or forget this one."));

const THEME = "tollway-theme";
function theme(choice: string | null): void {
  if (choice) document.documentElement.dataset["theme"] = choice;
  for (const view of Object.values(views)) view.restyle?.();
}
byId("theme").addEventListener("click", () => {
  const chosen = document.documentElement.dataset["theme"];
  const isDark = chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const next = isDark ? "light" : "dark";
  localStorage.setItem(THEME, next);
  theme(next);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(null));

theme(localStorage.getItem(THEME));
window.addEventListener("hashchange", navigate);
navigate();
void greet();
live.start();
