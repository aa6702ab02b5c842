// Asks once before something is changed, and says what is changed and how far that reaches.

import { h, replace } from "./dom";

export interface Change {
  /** What is to be done, as a question: "Pause the queue mail?" */
  question: string;
  /** What that means, and for whom. */
  scope: string;
  /** The word on the button that does it. */
  verb: string;
  /** A text that the change needs. */
  input?: { label: string; value: string; hint: string };
  /** A choice that the change needs: values and what they are called. */
  choice?: { label: string; options: [value: string, text: string][] };
}

const title = h("h2", { id: "confirm-title" });
const scope = h("p", { id: "confirm-scope" });
const label = h("label", { for: "confirm-input" });
const input = h("input", { id: "confirm-input", spellcheck: "false" });
const hint = h("p", { class: "hint" });
const choiceLabel = h("label", { for: "confirm-choice" });
const choice = h("select", { id: "confirm-choice" });
const agree = h("button", { class: "primary", type: "submit" });
const cancel = h("button", { type: "button", click: () => dialog.close("") }, "Leave as it is");
const form = h("form", { method: "dialog" }, title, scope, label, input, hint, choiceLabel, choice, h("p", { class: "buttons" }, cancel, agree));
const dialog = h("dialog", { id: "confirm", "aria-labelledby": "confirm-title", "aria-describedby": "confirm-scope" }, form);

/** Resolves to the text that was given or chosen (empty without one) if the change is wanted, to `null` if not. */
export function confirmed(change: Change): Promise<string | null> {
  if (!dialog.isConnected) document.body.append(dialog);
  replace(title, change.question);
  replace(scope, change.scope);
  replace(agree, change.verb);
  for (const part of [label, input, hint]) part.hidden = !change.input;
  replace(label, change.input?.label);
  replace(hint, change.input?.hint);
  input.value = change.input?.value ?? "";
  for (const part of [choiceLabel, choice]) part.hidden = !change.choice;
  replace(choiceLabel, change.choice?.label);
  replace(choice, ...(change.choice?.options ?? []).map(([value, text]) => h("option", { value }, text)));
  // Closed by the Escape key it must not say what it said the last time.
  dialog.returnValue = "";
  form.onsubmit = (event) => {
    event.preventDefault();
    dialog.close("yes");
  };
  dialog.showModal();
  // What changes nothing has the focus: a key that is held down agrees to nothing.
  (change.input ? input : cancel).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? (change.choice ? choice.value : input.value.trim()) : null), { once: true });
  });
}
