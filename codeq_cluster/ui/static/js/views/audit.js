// Audit: what was changed, by whom and when.

import { h } from "../dom.js";
import { href } from "../router.js";
import { listed, listView, pages } from "../search.js";
import { administers } from "../state.js";
import { at } from "../states.js";
import { table } from "../table.js";

const WORDS = {
  "backup.create": "Began a backup",
  "cluster.join": "Let a node in",
  "cluster.remove": "Removed a node",
  "cluster.transfer": "Handed a leadership over",
  "cluster.upgrade": "Let newer formats be used",
  "delivery.replay": "Replayed deliveries",
  "dlq.delete": "Deleted dead letters",
  "dlq.undo": "Took a requeue back",
  "dlq.requeue": "Requeued dead letters",
  "dlq.revise": "Requeued with another payload",
  "queue.pause": "Paused a queue",
  "queue.purge": "Purged a queue",
  "queue.resume": "Resumed a queue",
  "task.cancel": "Cancelled a task",
  "task.delete": "Deleted tasks",
  "topic.delete": "Deleted a policy",
  "topic.put": "Saved a policy",
};
const TONES = { delete: "bad", purge: "bad", remove: "bad", cancel: "warn", pause: "warn" };

export function open() {
  const rows = table({
    caption: "Audit",
    empty: "Nothing is on record.",
    key: (row) => row.id,
    columns: [
      { name: "When", cell: (row) => at(row.at) },
      { name: "Who", kind: "name", cell: (row) => h("span.break", {}, row.actor) },
      { name: "What", kind: "action", cell: (row) => h("span.tag", { class: TONES[row.action.split(".")[1]] || "", title: row.action }, WORDS[row.action] || row.action) },
      { name: "To what", wide: true, cell: (row) => [target(row), row.detail && h("div.dim.small.break", {}, row.detail)] },
      { name: "Log index", num: true, less: true, title: "Of the entry that carries it", cell: (row) => String(row.index) },
    ],
  });
  const list = pages({ into: rows, fetch: listed("/audit", "records") });
  return listView("Audit", { rows, list });
}

// Leads to what was changed, where the page has a view of it.
function target({ action, target: name }) {
  const kind = action.split(".")[0];
  const view = { queue: "queues", topic: "topics", task: "tasks", dlq: "tasks" }[kind];
  return view && administers() ? h("a.break", { href: href(view, name) }, name) : h("span.break", {}, name);
}
