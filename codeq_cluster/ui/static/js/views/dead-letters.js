// Dead letters: queues that have some, or those of one queue by kind of error and one by one.

import { h } from "../dom.js";
import { count } from "../format.js";
import { head, number } from "../parts.js";
import { href } from "../router.js";
import { table } from "../table.js";
import { openQueue } from "./dead-queue.js";

export function open(context) {
  return context.rest.length ? openQueue(context, context.rest[0]) : openAll(context);
}

function openAll({ follow }) {
  const rows = table({
    caption: "Queues with dead letters",
    empty: "There are no dead letters.",
    key: (row) => row.command,
    columns: [
      { name: "Queue", wide: true, cell: (row) => h("a", { href: href("dead-letters", row.command) }, row.command) },
      { name: "Dead letters", num: true, cell: (row) => h("span.bad", {}, count(row.dlq)) },
      { name: "Ready", num: true, less: true, cell: (row) => number(row.ready) },
      { name: "In progress", num: true, less: true, cell: (row) => number(row.inProgress) },
    ],
  });
  follow("queues", { sort: "dlq", order: "desc", limit: 200 }, (part, data) => {
    if (part === "view") rows.draw(data.queues.filter((row) => row.dlq > 0));
  });
  return { title: "Dead letters", node: h("div", {}, head("Dead letters"), h("section.card", { "aria-label": "Queues with dead letters" }, rows.node)) };
}
