// The states of a task in words, and how a list shows them.

import { h } from "./dom.js";
import { ago, stamp, until } from "./format.js";

export const STATES = { ready: "Ready", "in-progress": "In progress", delayed: "Delayed", held: "Held", completed: "Completed", failed: "Failed", dead: "Dead letter" };

export function tag(state) {
  return h("span.tag", { class: state }, STATES[state] || state);
}

export function instant(text) {
  return text ? h("time", { datetime: text, title: stamp(text) }, ago(text)) : "–";
}

// An instant where a list or a history is read by it: in full, and to the millisecond as the server says.
export function at(text) {
  return h("time.nowrap", { datetime: text, title: text }, stamp(text));
}

export function due(text) {
  return text ? h("time", { datetime: text, title: stamp(text) }, until(text)) : "–";
}

// The start of an id: enough to tell tasks apart by eye, and to find one; the whole of it is the link's
// title.
export function shortId(id) {
  return id.length > 13 ? id.slice(0, 13) + "…" : id;
}

// Returns what of a text may be an id or its start, as it was copied from a list; nothing if it is not.
export function idIn(text) {
  const id = text.trim().replace(/(…|\.\.\.)$/, "");
  return /^[0-9a-f]{8}(-[0-9a-f-]*)?$|^[0-9a-f]{24,}$|^[0-9A-HJKMNP-TV-Z]{26}$/i.test(id) ? id : "";
}
