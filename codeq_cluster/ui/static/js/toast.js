// Short notices in the corner, some with something to do about them.

import { h } from "./dom.js";

const STAYS_MS = 6000;
const SHOWN_MAX = 4;

// action() is called by the button called label; also is another [label, action]. Returns what
// closes it.
export function toast(text, { kind = "good", action, label, also, stays = STAYS_MS } = {}) {
  const box = document.getElementById("toasts");
  const close = () => notice.remove();
  const button = (name, act) => h("button.link", { type: "button", onclick: () => { close(); act(); } }, name);
  const notice = h("div.toast", { class: kind, "data-kept": Boolean(action) }, h("p", {}, text), action && button(label, action), also && button(...also),
    (!action || stays > 0) && h("button.plain", { type: "button", "aria-label": "Dismiss", onclick: close }, "✕"));
  box.append(notice);
  // One that can still be undone stays as long as it can.
  const spare = [...box.children].find((each) => each.dataset.kept === undefined);
  if (box.children.length > SHOWN_MAX && spare) spare.remove();
  if (stays) setTimeout(close, stays);
  return close;
}

export function failed(failure) {
  const id = failure.requestId ? " (request " + failure.requestId + ")" : "";
  toast(failure.message + id, { kind: "bad", stays: 12000 });
}

// Does what may fail: returns what it returns, or says why it has failed.
export async function tried(work) {
  try {
    return await work();
  } catch (failure) {
    failed(failure);
    return undefined;
  }
}
