// Parts that several views show.

import { h } from "./dom.js";
import { count, rate, short, span } from "./format.js";

// beside: a node after the title; tools: a node in place of actions. Both may change later.
export function head(title, { trail, beside, actions, tools } = {}) {
  return h("div.head", {}, trail && h("span.trail", {}, h("a", { href: trail.href }, trail.text), " /"), h("h1", {}, title), beside, tools || (actions && h("div.actions", {}, actions)));
}

export function card(title, body, { aside, flush, label } = {}) {
  return h("section.card", { "aria-label": label || (typeof title === "string" ? title : null) },
    title && h("header", {}, h("h2", {}, title), aside), h("div.body", { class: flush ? "flush" : "" }, body));
}

export function figure({ name, value, note, kind, href }) {
  return h(href ? "a.figure" : "div.figure", { href, "data-key": name },
    h("div.name", {}, kind && h("i.dot", { class: kind }), name), h("div.value", {}, value), h("div.note", {}, note || ""));
}

export function number(value, kind = "") {
  return h("span", { class: value ? kind : "zero", title: value > 9999 ? count(value) : null }, short(value));
}

export function perSecond(value, kind = "") {
  return h("span", { class: value ? kind : "zero" }, rate(value));
}

export function waited(seconds) {
  return h("span", { class: seconds >= 300 ? "warn" : seconds ? "" : "zero" }, seconds ? span(seconds) : "–");
}

export function choice(label, values, chosen, onchange) {
  return h("label.field", {}, label, h("select", { onchange: (event) => onchange(event.target.value) },
    values.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}

// A field whose text is told once nobody types any more.
export function textFilter(label, value, placeholder, told) {
  const tell = settled((text) => told(text.trim()), 400);
  return h("label.field", {}, label, h("input", { type: "search", value, placeholder, spellcheck: "false", oninput: (event) => tell(event.target.value) }));
}

let left = 0; // Views.

export function leaveTyping() {
  left += 1;
}

// Calls after the last of several changes, as of what is being typed; not once the view is left, since
// it would write its filters into the address of the next.
export function settled(call, milliseconds = 250) {
  const before = left;
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => left === before && call(...values), milliseconds);
  };
}
