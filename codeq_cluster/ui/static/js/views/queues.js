// Queues: all of them, or one.

import { h } from "../dom.js";
import { count } from "../format.js";
import { head, number, perSecond, settled, waited } from "../parts.js";
import { href, keep } from "../router.js";
import { table } from "../table.js";
import { openQueue } from "./queue.js";

const PAGE = 50;

export function open(context) {
  return context.rest.length ? openQueue(context, context.rest[0]) : openAll(context);
}

function openAll({ query, follow }) {
  const asked = { text: query.get("text") || "", sort: query.get("sort") || "command", order: query.get("order") || "asc", skip: 0, limit: PAGE };
  const sorted = { by: asked.sort, order: asked.order, on: (by, order) => show({ sort: by, order, skip: 0 }) };
  const pager = h("div.pager");
  const text = h("input", { type: "search", value: asked.text, placeholder: "Part of a name", "aria-label": "Filter by name", oninput: settled(() => show({ text: text.value.trim(), skip: 0 })) });
  const rows = table({
    caption: "Queues",
    sorted,
    empty: "No queue matches.",
    key: (row) => row.command,
    columns: [
      { name: "Queue", sort: "command", wide: true, cell: (row) => [h("a", { href: href("queues", row.command) }, row.command), row.paused && [" ", h("span.tag.warn", {}, "paused")]] },
      { name: "Ready", num: true, sort: "ready", cell: (row) => number(row.ready) },
      { name: "Oldest", num: true, sort: "oldest", title: "How long the longest-waiting ready task has been ready", cell: (row) => waited(row.oldestReadySeconds) },
      { name: "In progress", num: true, sort: "inProgress", less: true, cell: (row) => number(row.inProgress) },
      { name: "Delayed", num: true, sort: "delayed", less: true, cell: (row) => number(row.delayed) },
      { name: "Dead letters", num: true, sort: "dlq", cell: (row) => (row.dlq ? h("a.bad", { href: href("dead-letters", row.command) }, count(row.dlq)) : number(0)) },
      { name: "Created /s", num: true, sort: "created", less: true, cell: (row) => perSecond(row.rates.created) },
      { name: "Completed /s", num: true, sort: "completed", less: true, cell: (row) => perSecond(row.rates.completed) },
      { name: "Failed /s", num: true, sort: "failed", less: true, cell: (row) => perSecond(row.rates.failed, "bad") },
    ],
  });

  function show(changes) {
    Object.assign(asked, changes);
    sorted.by = asked.sort;
    sorted.order = asked.order;
    keep({ text: asked.text, sort: asked.sort === "command" ? "" : asked.sort, order: asked.order === "asc" ? "" : asked.order });
    feed.show(asked);
  }

  function take(part, data) {
    if (part !== "view") return;
    rows.draw(data.queues);
    const from = asked.skip;
    const step = (label, skip, can) => h("button", { type: "button", disabled: !can, onclick: () => show({ skip }) }, label);
    pager.replaceChildren(
      data.matching ? `${count(from + 1)}–${count(from + data.queues.length)} of ${count(data.matching)}` : "",
      ...(data.matching > PAGE ? [step("Previous", Math.max(0, from - PAGE), from > 0), step("Next", from + PAGE, from + PAGE < data.matching)] : []));
  }

  const feed = follow("queues", asked, take);
  return {
    title: "Queues",
    node: h("div", {}, head("Queues"), h("div.filters", {}, text), h("section.card", { "aria-label": "Queues" }, rows.node), pager),
  };
}
