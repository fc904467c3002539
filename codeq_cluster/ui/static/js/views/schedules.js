// Schedules: all of them, or one.

import { h } from "../dom.js";
import { count } from "../format.js";
import { choice, number, textFilter } from "../parts.js";
import { go, href, keep } from "../router.js";
import { listed, listView, pages } from "../search.js";
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
  const list = pages({ into: rows, fetch: listed("/schedules", "schedules", () => asked) });

  function show(changes) {
    Object.assign(asked, changes);
    keep(asked);
    list.restart();
  }

  async function make() {
    const made = await editing(null);
    if (made) go(href("schedules", made.id));
  }

  const text = (name, label, placeholder) => textFilter(label, asked[name], placeholder, (value) => show({ [name]: value }));

  return listView("Schedules", {
    rows,
    list,
    actions: administers() && h("button.primary", { type: "button", onclick: make }, "New schedule"),
    above: h("div.filters", {},
      text("text", "Schedule", "Part of its name"),
      text("owner", "Owner", "Whole name"),
      choice("State", [["", "Any state"], ...Object.entries(STATES)], asked.state, (state) => show({ state }))),
  });
}
