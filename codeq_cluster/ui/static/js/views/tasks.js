// Tasks: found by state, queue, age, id, worker, tag and error; or one of them.

import { h } from "../dom.js";
import { choice, textFilter } from "../parts.js";
import { go, href, keep } from "../router.js";
import { listed, listView, pages } from "../search.js";
import { administers } from "../state.js";
import { idIn, instant, shortId, STATES, tag } from "../states.js";
import { table } from "../table.js";
import { acting } from "./bulk.js";
import { newTaskButton } from "./new-task.js";
import { openTask } from "./task.js";

const AGES = [["", "Any age"], ["900", "Up to 15 minutes"], ["3600", "Up to 1 hour"], ["86400", "Up to 1 day"], ["-3600", "Over 1 hour"], ["-86400", "Over 1 day"], ["-604800", "Over 1 week"]];

export function open(context) {
  return context.rest.length ? openTask(context, context.rest[0]) : openAll(context);
}

export function taskColumns() {
  return [
    { name: "Task", cell: (row) => h("a.mono.nowrap", { href: href("tasks", row.id), title: row.id }, shortId(row.id)) },
    { name: "Queue", less: true, kind: "queue", cell: (row) => h("a", { href: href("queues", row.command.toLowerCase()) }, row.command) },
  ];
}

function openAll({ query }) {
  const asked = { state: "", command: "", age: "", error: "", worker: "", tag: "" };
  for (const name of Object.keys(asked)) asked[name] = query.get(name) || "";
  const rows = table({
    caption: "Tasks",
    empty: "No task matches.",
    key: (row) => row.id,
    columns: [
      ...taskColumns(),
      { name: "State", cell: (row) => [tag(row.state), row.worker && h("div.dim.small.break", {}, row.worker)] },
      { name: "Attempts", num: true, less: true, cell: (row) => `${row.attempts || 0} of ${row.maxAttempts}` },
      { name: "Created", cell: (row) => h("span.nowrap", {}, instant(row.createdAt)) },
      { name: "In this state", less: true, cell: (row) => h("span.nowrap", {}, instant(row.since)) },
      { name: "Error", wide: true, cell: (row) => h("span.clip", {}, row.error || "") },
    ],
  });

  const list = pages({ into: rows, fetch: listed("/tasks", "tasks", filters) });

  function filters() {
    const { age, tag: typed, ...others } = asked;
    const bound = age && new Date(Date.now() - Math.abs(Number(age)) * 1000).toISOString();
    // What is not a tag yet asks for nothing.
    return { ...others, tag: /^[^:]+:./.test(typed) ? typed : "", [age.startsWith("-") ? "createdBefore" : "createdFrom"]: bound };
  }

  function show(changes) {
    Object.assign(asked, changes);
    keep(asked);
    list.restart();
  }

  const text = (name, label, placeholder) => textFilter(label, asked[name], placeholder, (value) => show({ [name]: value }));
  const id = h("form", { onsubmit: (event) => { event.preventDefault(); openId(event.target.elements.namedItem("id").value.trim()); } },
    h("label.field", {}, "Id", h("input", { type: "search", name: "id", placeholder: "Its start, then Enter", title: "At least 8 characters of an id", spellcheck: "false" })));

  // The field says that it is an id, so any text goes to the task's view, which says whether there is one.
  const openId = (text) => text && go(href("tasks", idIn(text) || text));
  return listView("Tasks", {
    rows,
    list,
    actions: administers() && [h("button", { type: "button", onclick: () => acting(filters()) }, "Act on all…"), newTaskButton({ primary: true })],
    above: [
      h("div.filters", {},
        choice("State", [["", "Any state"], ...Object.entries(STATES)], asked.state, (state) => show({ state })),
        text("command", "Queue", "Whole name"),
        choice("Created", AGES, asked.age, (age) => show({ age })),
        text("tag", "Tag", "user:42"),
        text("error", "Error", "Part of it"),
        text("worker", "Worker", "Who holds it"),
        id),
      h("p.dim.small", {}, "Sorted by queue, then by state: waiting tasks in the order they are claimed, ended ones newest first. With a tag, by the time of creation, newest first."),
    ],
  });
}
