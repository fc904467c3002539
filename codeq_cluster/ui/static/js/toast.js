// Short notices in the corner, some with something to do about them.

import { h, put } from "./dom.js";

const STAYS_MS = 6000;

// action() is called by the button called label; also is another [label, action]. Returns what
// closes it; its say(text) changes the words.
export function toast(text, { kind = "good", action, label, also, stays = STAYS_MS } = {}) {
  const box = document.getElementById("toasts");
  const words = h("p", {}, text);
  const close = () => notice.remove();
  const button = (name, act) => h("button.link", { type: "button", onclick: () => { close(); act(); } }, name);
  const notice = h("div.toast", { class: kind }, words, action && button(label, action), also && button(...also),
    (!action || stays > 0) && h("button.plain", { type: "button", "aria-label": "Dismiss", onclick: close }, "✕"));
  box.append(notice);
  while (box.children.length > 4) box.firstChild.remove();
  if (stays) setTimeout(close, stays);
  close.say = (next) => put(words, next);
  return close;
}

export function failed(failure) {
  const id = failure.requestId ? " (request " + failure.requestId + ")" : "";
  toast(failure.message + id, { kind: "bad", stays: 12000 });
}
