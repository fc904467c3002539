// Bulk jobs: those that go on, those of the last day, and what begins one.

import { confirm, ask as dialog } from "../dialog.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { ask, path, post } from "../http.js";
import { choice, head, number } from "../parts.js";
import { go, href } from "../router.js";
import { instant } from "../states.js";
import { table } from "../table.js";
import { toast, tried } from "../toast.js";
import { freshKey } from "./new-task.js";

const STATES = { RUNNING: ["Running", "in-progress"], DONE: ["Done", "completed"], STOPPED: ["Stopped", ""] };
// Of an action: what the button says, and what becomes of the tasks.
const ACTIONS = {
  cancel: ["Cancel", "cancelled"],
  requeue: ["Requeue", "requeued"],
  delete: ["Delete", "deleted"],
  runNow: ["Run now", "made ready"],
};
// By the state of a search, the status that a job can select: some have several states.
const STATUSES = { ready: "PENDING", delayed: "PENDING", held: "PENDING", "in-progress": "IN_PROGRESS", completed: "COMPLETED", failed: "FAILED", dead: "DEAD" };
const WORDS = { PENDING: "waiting (ready, delayed or held)", IN_PROGRESS: "in progress", COMPLETED: "completed", FAILED: "failed or dead letters", DEAD: "dead letters" };

// What a job selects, in words.
function said(select) {
  return [
    select.status && (WORDS[select.status] || select.status),
    select.command && "of " + select.command,
    select.tag && "with " + select.tag.join(", "),
    select.schedule && "of the schedule " + select.schedule,
    select.group && "of the group " + select.group,
    select.createdAfter && "created since " + select.createdAfter,
    select.createdBefore && "created before " + select.createdBefore,
  ].filter(Boolean).join(", ");
}

export function open({ follow }) {
  const rows = table({
    caption: "Bulk jobs",
    empty: "There are no bulk jobs. Begin one from a search for tasks; it is kept for a day after its end.",
    key: (row) => row.id,
    columns: [
      { name: "Job", kind: "schedule", cell: (row) => [h("span.break", {}, row.id), h("div.dim.small.break", {}, row.by)] },
      { name: "State", cell: (row) => [stateTag(row), row.unreadable > 0 && h("div.bad.small", { title: "Tasks that it left alone because their records cannot be read" }, count(row.unreadable) + " unreadable"), row.incomplete && h("div.warn.small", {}, "incomplete"), row.status === "RUNNING" && h("div", {}, h("button", { type: "button", "aria-label": "Stop " + row.id, onclick: () => stop(row) }, "Stop"))] },
      { name: "Tasks", wide: true, cell: (row) => h("span.break", {}, h("b", {}, (ACTIONS[row.action] || [row.action])[0]), ": those ", said(row.select)) },
      { name: "Changed", num: true, cell: (row) => number(row.changed) },
      { name: "Selected", num: true, less: true, title: "Tasks that it is about, of those that it has come to", cell: (row) => number(row.selected) },
      { name: "Read", num: true, less: true, title: "Tasks that it has come to", cell: (row) => number(row.looked) },
      { name: "Begun", less: true, cell: (row) => h("span.nowrap", {}, instant(row.createdAt)) },
      { name: "Ended", less: true, cell: (row) => h("span.nowrap", {}, instant(row.endedAt)) },
    ],
  });

  async function stop(job) {
    if (!(await confirm({ title: `Stop ${job.id}?`, text: "What it has done stays.", button: "Stop the job", danger: true }))) return;
    await tried(async () => {
      await ask("DELETE", path("bulk", job.id));
      toast(`${job.id} is stopped`);
      feed.refresh();
    });
  }

  const feed = follow("bulk", {}, (part, data) => part === "view" && rows.draw(data.jobs));
  rows.draw([], "…");
  return { title: "Bulk jobs", node: h("div", {}, head("Bulk jobs"), h("section.card", { "aria-label": "Bulk jobs" }, rows.node)) };
}

function stateTag(job) {
  const [text, kind] = STATES[job.status] || [job.status, ""];
  return h("span.tag", { class: kind }, text);
}

// Begins a job about what a search has found: asks what to do, counts, and asks again.
// filters: of the search; those of tasks that no job can select by are refused with a reason.
export async function acting(filters) {
  const select = {
    ...(filters.state && { status: STATUSES[filters.state] }),
    ...(filters.command && { command: filters.command }),
    ...(filters.tag && { tag: [filters.tag] }),
    ...(filters.createdFrom && { createdAfter: filters.createdFrom }),
    ...(filters.createdBefore && { createdBefore: filters.createdBefore }),
  };
  const refusal = filters.error || filters.worker ? "A bulk job selects by no error and no worker: clear these." : !(select.status || select.command || select.tag) ? "Choose a state, a queue or a tag first." : "";
  if (refusal) {
    toast(refusal, { kind: "bad" });
    return;
  }
  let action = "cancel";
  const counts = await dialog({
    title: "Act on all of these tasks?",
    button: "Count them",
    body: [h("p", {}, "Those " + said(select) + "."), choice("What to do", Object.entries(ACTIONS).map(([name, [text]]) => [name, text]), action, (chosen) => { action = chosen; })],
    send: () => post("/bulk", { select, action, dryRun: true }),
  });
  if (counts === null) return;
  const [verb, done] = ACTIONS[action];
  if (!counts.changes && !counts.more) {
    toast(`Nothing to do: none of ${plural(counts.selected, "selected task")} can be ${done}`);
    return;
  }
  const many = (counts.more ? "at least " : "") + plural(counts.changes, "task");
  const id = freshKey();
  const job = await dialog({
    title: `${verb} ${many}?`,
    button: `${verb} ${counts.more ? "them" : plural(counts.changes, "task")}`,
    danger: action !== "runNow",
    body: [
      h("p", {}, `${count(counts.changes)} of ${plural(counts.selected, "selected task")} would be ${done}${counts.more ? ", and there are more" : ""}; the others are left alone.`),
      h("ul.plain-list", {}, Object.entries(counts.byStatus).map(([status, each]) => h("li", {}, h("b", {}, count(each)), " ", status === "DEAD" ? "dead letters" : status.toLowerCase().replace("_", " ")))),
      h("p", {}, "The job goes on by itself, also if you close this window, and can be stopped. There is no undo."),
    ],
    send: () => post("/bulk", { select, action, id }),
  });
  if (job === null) return;
  toast("The job has begun");
  go(href("bulk"));
}
