// Delayed: what becomes ready later, by when it does.

import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { path, post } from "../http.js";
import { textFilter } from "../parts.js";
import { keep } from "../router.js";
import { listed, listView, pages } from "../search.js";
import { administers } from "../state.js";
import { due, instant } from "../states.js";
import { table } from "../table.js";
import { toast, tried } from "../toast.js";
import { taskColumns } from "./tasks.js";

export function open({ query }) {
  const asked = { command: query.get("command") || "" };
  const rows = table({
    caption: "Delayed tasks",
    empty: "No task is delayed.",
    key: (row) => row.id,
    columns: [
      { name: "Due", cell: (row) => h("span.nowrap", {}, due(row.until)) },
      ...taskColumns(),
      { name: "Why", wide: true, cell: (row) => (row.attempts ? h("span.clip", {}, `Backs off after attempt ${row.attempts} of ${row.maxAttempts}`) : "Scheduled") },
      { name: "Created", less: true, cell: (row) => h("span.nowrap", {}, instant(row.createdAt)) },
      ...(administers() ? [{ name: "", cell: (row) => h("button.plain", { type: "button", "aria-label": "Cancel " + row.id, onclick: () => cancel(row) }, "Cancel") }] : []),
    ],
  });
  const list = pages({ into: rows, fetch: listed("/delayed", "tasks", () => asked) });

  async function cancel(row) {
    const sure = await confirm({ title: "Cancel this task?", text: `It would become ready ${due(row.until).textContent}. It ends as failed, and those who wait for its result are told so. There is no undo.`, button: "Cancel the task", danger: true });
    if (!sure) return;
    await tried(async () => {
      await post(path("tasks", row.id, "cancel"));
      toast("The task is cancelled");
      list.forget(new Set([row.id]));
    });
  }

  const queue = textFilter("Queue", asked.command, "Whole name", (command) => {
    asked.command = command;
    keep(asked);
    list.restart();
  });
  return listView("Delayed", { rows, list, above: h("div.filters", {}, queue), label: "Delayed tasks" });
}
