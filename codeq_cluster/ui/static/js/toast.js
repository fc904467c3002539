// Short notices in the corner, some with something to do about them.

import { h } from "./dom.js";

const STAYS_MS = 6000;

export function toast(text, { kind = "good", action, label, stays = STAYS_MS } = {}) {
  const box = document.getElementById("toasts");
  const close = () => notice.remove();
  const notice = h(
    "div.toast",
    { class: kind },
    h("p", {}, text),
    action && h("button.link", { type: "button", onclick: () => { close(); action(); } }, label),
    h("button.plain", { type: "button", "aria-label": "Dismiss", onclick: close }, "✕"),
  );
  box.append(notice);
  while (box.children.length > 4) box.firstChild.remove();
  if (stays) setTimeout(close, stays);
  return close;
}

export function failed(failure) {
  const id = failure.requestId ? " (request " + failure.requestId + ")" : "";
  toast(failure.message + id, { kind: "bad", stays: 12000 });
}
