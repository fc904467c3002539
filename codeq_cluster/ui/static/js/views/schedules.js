// Schedules: all of them, or one.

import { h } from "../dom.js";
import { count } from "../format.js";
import { get, query as asQuery } from "../http.js";
import { choice, head, number, settled } from "../parts.js";
import { go, href, keep } from "../router.js";
import { pages } from "../search.js";
import { administers } from "../state.js";
import { due, instant } from "../states.js";
import { table } from "../table.js";
import { editing } from "./schedule-form.js";
import { lag, openSchedule, runTag, scheduleTag, STATES } from "./schedule.js";

const WORDS_MAX = 44; // Of a cell: more of them are harder to read than the expression.

export function open(context) {
  return context.rest.length ? openSchedule(context, context.rest[0]) : openAll(context);
}

function calendar({ words, written }) {
  return words.length > WORDS_MAX ? h("code", { title: words }, written) : h("span", { title: written }, words);
}

function openAll({ query }) {
  const asked = { text: "", owner: "", state: "" };
  for (const name of Object.keys(asked)) asked[name] = query.get(name) || "";
  const rows = table({
    caption: "Schedules",
    empty: () => (Object.values(asked).some(Boolean) ? "No schedule matches." : "There are no schedules."),
    key: (row) => row.id,
    columns: [
      { name: "Schedule", kind: "schedule", cell: (row) => [h("a", { href: href("schedules", row.id) }, row.id), row.owner && h("div.dim.small.break", {}, row.owner)] },
      { name: "Fires", wide: true, less: true, cell: (row) => [calendar(row), h("div.dim.small", {}, row.zone)] },
      { name: "State", cell: (row) => scheduleTag(row.state) },
      { name: "Last run", cell: (row) => (row.last ? [h("span.nowrap", {}, instant(row.last.at), " "), runTag(row.last)] : h("span.zero", {}, "–")) },
      { name: "Lag", num: true, less: true, title: "How long after its instant the last run was made", cell: (row) => (row.last ? lag(row.last) : h("span.zero", {}, "–")) },
      { name: "Next", less: true, cell: (row) => h("span.nowrap", {}, row.next && row.state === "active" ? due(row.next.at) : h("span.zero", {}, "–")) },
      { name: "Missed", num: true, title: "Instants that did not fire, because they were late or refused", cell: (row) => h("span", { class: row.missed ? "bad" : "zero" }, count(row.missed)) },
      { name: "Running", num: true, less: true, title: "Runs that have not ended, and those that wait for them", cell: (row) => [number(row.running), row.queued > 0 && h("div.dim.small", {}, count(row.queued) + " queued")] },
    ],
  });
  const list = pages({
    into: rows,
    fetch: async (cursor, signal) => {
      const found = await get("/schedules" + asQuery({ ...asked, cursor, limit: 50 }), { signal });
      return { rows: found.schedules, cursor: found.cursor };
    },
  });

  function show(changes) {
    Object.assign(asked, changes);
    keep(asked);
    list.restart();
  }

  async function make() {
    const made = await editing(null);
    if (made) go(href("schedules", made.id));
  }

  const text = (name, label, placeholder) => {
    const typed = settled((value) => show({ [name]: value.trim() }), 400);
    return h("label.field", {}, label, h("input", { type: "search", value: asked[name], placeholder, spellcheck: "false", oninput: (event) => typed(event.target.value) }));
  };

  list.restart();
  return {
    title: "Schedules",
    close: list.stop,
    node: h("div", {}, head("Schedules", { actions: [
      h("button", { type: "button", onclick: () => list.restart() }, "Refresh"),
      administers() && h("button.primary", { type: "button", onclick: make }, "New schedule"),
    ] }),
      h("div.filters", {},
        text("text", "Schedule", "Part of its name"),
        text("owner", "Owner", "Whole name"),
        choice("State", [["", "Any state"], ...Object.entries(STATES)], asked.state, (state) => show({ state }))),
      h("section.card", { "aria-label": "Schedules" }, rows.node), list.node),
  };
}
