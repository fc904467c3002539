// Actions on many tasks: in parts, with progress that can be stopped, and a way back for a while.

import { h, put } from "./dom.js";
import { count } from "./format.js";
import { failed, toast } from "./toast.js";

const UNDO_MS = 120_000;
const HELD_S = 10;
export const AT_ONCE = 1000; // Tasks that one request names at most.

// Repeats step() → {changed, more, …} until there is no more, or it is stopped. Returns the sums.
export async function inParts({ doing, expected, step }) {
  let stopped = false;
  let done = 0;
  const known = Number.isFinite(expected);
  const bar = h("progress", { max: known ? expected : null, "aria-label": doing });
  if (known) bar.value = 0;
  const words = h("p", {}, doing + "…");
  const dialog = h("dialog", { "aria-label": doing },
    h("form", { method: "dialog", onsubmit: (event) => event.preventDefault() }, words, bar,
      h("div.buttons", {}, h("button", { type: "button", onclick: () => { stopped = true; } }, "Stop"))));
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    stopped = true;
  });
  document.body.append(dialog);
  dialog.showModal();
  const parts = [];
  try {
    for (;;) {
      const part = await step(done);
      parts.push(part);
      done += part.ids.length;
      if (known) bar.value = done;
      put(words, `${doing}: ${count(done)}` + (known ? ` of ${count(expected)}` : ""));
      if (!part.more || stopped || done >= expected || !part.ids.length) break;
    }
  } catch (failure) {
    failed(failure);
  } finally {
    dialog.close();
    dialog.remove();
  }
  return { parts, changed: parts.reduce((sum, part) => sum + part.changed, 0), leftAlone: parts.reduce((sum, part) => sum + part.leftAlone, 0) };
}

// Says what was done, and for two minutes takes it back: undo(action, ids) → {changed}.
export function undoable(text, parts, undo, after) {
  const all = parts.filter((part) => part.action);
  if (!all.length) {
    toast(text);
    return;
  }
  toast(text, {
    label: "Undo",
    stays: UNDO_MS,
    action: async () => {
      let changed = 0;
      let meant = 0;
      try {
        for (const part of all) {
          meant += part.ids.length;
          for (let from = 0; from < part.ids.length; from += AT_ONCE) {
            changed += (await undo(part.action, part.ids.slice(from, from + AT_ONCE))).changed;
          }
        }
        const claimed = meant - changed;
        toast(`Taken back: ${count(changed)}` + (claimed ? `; ${count(claimed)} had been claimed already` : ""));
      } catch (failure) {
        failed(failure);
      }
      after();
    },
  });
}

// Waits for some seconds in which it can be called off; nothing is done before. A page that is left
// does nothing either.
export function held(text, act) {
  let left = HELD_S;
  // Hidden from screen readers, which would read every second of it.
  const countdown = h("span", { "aria-hidden": "true" }, ` in ${left} s`);
  const close = toast([text, countdown], { kind: "bad", stays: 0, label: "Undo", action: () => { clearInterval(timer); toast("Nothing was done"); }, also: ["Now", () => { clearInterval(timer); act(); }] });
  const timer = setInterval(() => {
    left -= 1;
    if (left > 0) {
      put(countdown, ` in ${left} s`);
      return;
    }
    clearInterval(timer);
    close();
    act();
  }, 1000);
}
