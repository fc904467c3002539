// Dialogs: what is asked before something is done.

import { h, put } from "./dom.js";

let numbered = 0;

// Opens a form in a dialog. Returns what send(form) returned, or null when it was closed. What send
// throws is shown beside the field that its `field` names, else below them all.
export function ask({ title, body, button = "OK", danger = false, send }) {
  return new Promise((done) => {
    const id = "dialog-" + ++numbered;
    const error = h("p.error", { role: "alert", id: id + "-error" });
    const go = h("button.primary", { class: danger ? "danger" : "" }, button);
    const form = h("form", { method: "dialog" },
      h("h2", { id }, title), body, error,
      h("div.buttons", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
    const dialog = h("dialog", { "aria-labelledby": id }, form);
    let answer = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      complain(form, error);
      try {
        answer = await send(form);
        dialog.close();
      } catch (failure) {
        go.disabled = false;
        complain(form, error, failure);
      }
    });
    // What was wrong may no longer be.
    form.addEventListener("input", () => error.firstChild && complain(form, error));
    form.addEventListener("invalid", (event) => reveal(event.target), true);
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    const first = [...form.querySelectorAll("input, textarea, select")].find((each) => each.checkVisibility());
    (first || go).focus();
  });
}

// A complaint that the dialog shows beside a field.
export function about(field, text) {
  return Object.assign(new Error(text), { field });
}

// Says what is wrong, or takes back what was said before.
function complain(form, error, failure) {
  for (const each of form.querySelectorAll("[aria-invalid]")) {
    each.removeAttribute("aria-invalid");
    each.removeAttribute("aria-errormessage");
  }
  put(error, failure && failure.message);
  const field = failure && failure.field && form.elements.namedItem(failure.field);
  if (!field) {
    form.querySelector(":scope > .buttons").before(error);
    return;
  }
  reveal(field);
  field.closest("label").after(error);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", error.id);
  field.focus();
}

// Opens what a field is folded into: the browser cannot point at what nobody sees.
function reveal(field) {
  for (let outer = field.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
}

// Asks whether to go on; with `typed`, only after that has been typed in.
export async function confirm({ title, text, button, danger, typed }) {
  const field = typed && h("input", { type: "text", autocomplete: "off", spellcheck: "false", name: "typed" });
  const answer = await ask({
    title,
    button,
    danger,
    body: [h("p", {}, text), typed && h("label.field", {}, h("span", {}, "Type ", h("code", {}, typed), " to go on"), field)],
    send: async () => {
      if (typed && field.value.trim() !== typed) throw new Error(`Type ${typed} to go on`);
      return true;
    },
  });
  return answer === true;
}
