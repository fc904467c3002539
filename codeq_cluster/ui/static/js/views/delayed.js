// Delayed: what becomes ready later, by when it does.

import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { get, path, post, query as asQuery } from "../http.js";
import { head, settled } from "../parts.js";
import { keep } from "../router.js";
import { pages } from "../search.js";
import { administers } from "../state.js";
import { due, instant } from "../states.js";
import { table } from "../table.js";
import { failed, toast } from "../toast.js";
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
  const list = pages({
    into: rows,
    fetch: async (cursor, signal) => {
      const found = await get("/delayed" + asQuery({ ...asked, cursor, limit: 50 }), { signal });
      return { rows: found.tasks, cursor: found.cursor };
    },
  });

  async function cancel(row) {
    const sure = await confirm({ title: "Cancel this task?", text: `It would become ready ${due(row.until).textContent}. It ends as failed, and those who wait for its result are told so. There is no undo.`, button: "Cancel the task", danger: true });
    if (!sure) return;
    try {
      await post(path("tasks", row.id, "cancel"));
      toast("The task is cancelled");
      list.forget(new Set([row.id]));
    } catch (failure) {
      failed(failure);
    }
  }

  const typed = settled((value) => {
    asked.command = value.trim();
    keep(asked);
    list.restart();
  }, 400);
  list.restart();
  return {
    title: "Delayed",
    close: list.stop,
    node: h("div", {}, head("Delayed", { actions: h("button", { type: "button", onclick: () => list.restart() }, "Refresh") }),
      h("div.filters", {}, h("label.field", {}, "Queue", h("input", { type: "search", value: asked.command, placeholder: "Whole name", spellcheck: "false", oninput: (event) => typed(event.target.value) }))),
      h("section.card", { "aria-label": "Delayed tasks" }, rows.node), list.node),
  };
}
