// The states of a task in words, and how a list shows them.

import { h } from "./dom.js";
import { ago, stamp, until } from "./format.js";

export const STATES = { ready: "Ready", "in-progress": "In progress", delayed: "Delayed", completed: "Completed", failed: "Failed", dead: "Dead letter" };

export function tag(state) {
  return h("span.tag", { class: state }, STATES[state] || state);
}

export function instant(text) {
  return text ? h("time", { datetime: text, title: stamp(text) }, ago(text)) : "–";
}

export function due(text) {
  return text ? h("time", { datetime: text, title: stamp(text) }, until(text)) : "–";
}

// The start of an id: enough to tell tasks apart by eye; the whole of it is the link's title.
export function shortId(id) {
  return id.length > 13 ? id.slice(0, 13) + "…" : id;
}
