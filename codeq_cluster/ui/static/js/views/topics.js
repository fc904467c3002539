// Topics: the policies of queues.

import { h } from "../dom.js";
import { count, span } from "../format.js";
import { go, href } from "../router.js";
import { listed, listView, pages } from "../search.js";
import { administers } from "../state.js";
import { instant } from "../states.js";
import { table } from "../table.js";
import { editing, openTopic } from "./topic.js";

export function open(context) {
  return context.rest.length ? openTopic(context, context.rest[0]) : openAll();
}

function openAll() {
  const dash = (text) => text || h("span.zero", {}, "–");
  const rows = table({
    caption: "Topics",
    empty: "No queue has a policy of its own: the broker's governs them all.",
    key: (row) => row.name,
    columns: [
      { name: "Queue", wide: true, cell: (row) => h("a", { href: href("topics", row.name.toLowerCase()) }, row.name) },
      { name: "Attempts", num: true, cell: (row) => dash(row.maxAttempts && count(row.maxAttempts)) },
      { name: "At once", num: true, title: "Tasks in progress at the same time", cell: (row) => dash(row.maxConsumers && count(row.maxConsumers)) },
      { name: "Weight", num: true, less: true, cell: (row) => count(row.weight) },
      { name: "Priorities", less: true, cell: (row) => dash(row.priorityTiers && row.priorityTiers.join(", ")) },
      { name: "Dead letters go to", less: true, cell: (row) => dash(row.deadLetterTopicRef) },
      { name: "Results kept", less: true, cell: (row) => dash(row.retentionSeconds && span(row.retentionSeconds)) },
      { name: "Changed", cell: (row) => h("span.nowrap", {}, instant(row.updatedAt)) },
    ],
  });
  const list = pages({ into: rows, fetch: listed("/topics", "topics", undefined, 100) });

  async function make() {
    const made = await editing(null);
    if (made) go(href("topics", made.name.toLowerCase()));
  }

  return listView("Topics", { rows, list, actions: administers() && h("button.primary", { type: "button", onclick: make }, "New policy") });
}
