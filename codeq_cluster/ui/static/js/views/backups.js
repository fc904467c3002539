// Backups: those of this node's place, and taking one.

import { confirm } from "../dialog.js";
import { h, patch, put } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { get, path, post } from "../http.js";
import { card } from "../parts.js";
import { at } from "../states.js";
import { table } from "../table.js";
import { failed, toast, tried } from "../toast.js";

const LOOK_MS = 1000;
const LOST_MAX = 30; // Looks without an answer before it is no longer followed.

export function backups() {
  const tools = h("div.actions");
  const progress = h("div.progress", { role: "status" });
  const body = h("div");
  let known = null;
  let timer = 0;
  let lost = 0;
  let closed = false;

  const rows = table({
    caption: "Backups",
    empty: "There is no backup yet.",
    key: (row) => row.id,
    columns: [
      { name: "Begun", cell: (row) => at(row.startedAt) },
      { name: "State", cell: (row) => (row.complete ? h("span.tag.good", {}, "complete") : [h("span.tag.bad", {}, "not to rely on"), h("div.small.break", {}, row.problem)]) },
      { name: "Tasks", num: true, cell: (row) => (row.tasks === undefined ? "–" : count(row.tasks)) },
      { name: "Size", num: true, cell: (row) => (row.bytes === undefined ? "–" : bytes(row.bytes)) },
      { name: "Taken by", less: true, cell: (row) => row.node || "–" },
      { name: "Id", wide: true, less: true, cell: (row) => h("code.break", {}, row.id) },
    ],
  });

  async function list() {
    try {
      const found = (await get("/backups")).backups;
      if (!closed) rows.draw([...found].reverse());
    } catch (failure) {
      rows.fail(failure.message, list);
    }
  }

  async function begin() {
    const sure = await confirm({
      title: "Take a backup of the whole cluster?",
      text: "This node writes it to its place, shard after shard, and reads it again. The cluster goes on meanwhile.",
      button: "Take a backup",
    });
    if (!sure) return;
    await tried(async () => show(await post("/backups")));
  }

  function show(backup) {
    lost = 0;
    if (backup.status === "DONE" || backup.status === "FAILED") {
      put(progress);
      if (backup.status === "DONE") toast(`The backup is complete: ${plural(backup.tasks, "task")}, ${bytes(backup.bytes)}`);
      else failed(new Error("The backup failed: " + backup.error));
      list();
    } else {
      const verifying = backup.status === "VERIFYING";
      patch(progress, h("progress", { max: backup.shards, value: backup.shardsDone, "aria-label": "Backup" }),
        h("span", {}, `${verifying ? "Reading it again" : "Writing"}: shard ${Math.min(backup.shardsDone + 1, backup.shards)} of ${backup.shards}, ${bytes(backup.bytes)}`));
      timer = setTimeout(() => look(backup), LOOK_MS);
    }
  }

  async function look(backup) {
    if (closed) return;
    let now = null;
    try {
      now = await get(path("backups", backup.id));
    } catch (failure) {
      lost += 1;
      if (lost >= LOST_MAX) {
        put(progress);
        failed(failure);
        return;
      }
      timer = setTimeout(() => look(backup), LOOK_MS);
    }
    if (now && !closed) show(now);
  }

  return {
    node: card("Backups", body, { flush: true, aside: tools }),
    place(there) {
      if (there === known) return;
      known = there;
      patch(tools, there && h("button", { type: "button", onclick: begin }, "Back up now"));
      put(body, there
        ? [progress, rows.node]
        : h("p.empty", {}, "No place for backups is configured on this node: set ", h("code", {}, "backup.directory"), " or ", h("code", {}, "backup.s3.bucket"), "."));
      if (there) list();
    },
    close() {
      closed = true;
      clearTimeout(timer);
    },
  };
}
