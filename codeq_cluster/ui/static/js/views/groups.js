// Groups: all of them, or one.

import { confirm } from "../dialog.js";
import { onDoubt, told } from "../doubt.js";
import { h, patch, put } from "../dom.js";
import { count, short } from "../format.js";
import { path, post } from "../http.js";
import { card, figure, head, number } from "../parts.js";
import { href } from "../router.js";
import { listed, listView, pages } from "../search.js";
import { administers } from "../state.js";
import { due, instant } from "../states.js";
import { table } from "../table.js";
import { toast, tried } from "../toast.js";

// Of a group: a tag's words and colours.
const STATES = { OPEN: ["Open", "ready"], SEALED: ["Sealed", "in-progress"], CANCELLING: ["Cancelling", "warn"], COMPLETED: ["Completed", "completed"], FAILED: ["Failed", "failed"], CANCELLED: ["Cancelled", ""] };
// Of members: a field, its words, and its colour.
const MEMBERS = [["completed", "Completed", "completed"], ["failed", "Failed", "failed"], ["dead", "Dead letters", "dlq"], ["cancelled", "Cancelled", "cancelled"], ["live", "Not ended", "in-progress"]];
const WAITS = { seal: "to be sealed", members: "for its members" };
const ONCE = { ended: "after the last end, however the members end", succeeded: "if all members are completed" };

export function open(context) {
  return context.rest.length ? openGroup(context, context.rest[0]) : openAll();
}

function stateTag(group) {
  const [text, kind] = STATES[group.status] || [group.status, ""];
  return h("span.tag", { class: kind }, text);
}

// How far a group has come, as a bar; the words beside it say the same.
function bar(group) {
  const node = h("div.share", { "aria-hidden": "true" });
  for (const [field, , kind] of MEMBERS) {
    if (field === "live" || !group[field]) continue;
    const part = h("i", { class: kind });
    part.style.width = (100 * group[field]) / group.total + "%";
    node.append(part);
  }
  return [node, h("div.dim.small.nowrap", {}, `${count(group.total - group.live)} of ${count(group.total)} ended`)];
}

function openAll() {
  const rows = table({
    caption: "Groups",
    empty: "There are no groups.",
    key: (row) => row.id,
    columns: [
      { name: "Group", kind: "schedule", cell: (row) => h("a.break", { href: href("groups", row.id) }, row.id) },
      { name: "State", cell: stateTag },
      { name: "Progress", wide: true, cell: bar },
      // Those that have not ended are what the bar lacks.
      ...MEMBERS.filter(([field]) => field !== "live").map(([field, name, kind]) => ({ name, num: true, less: true, cell: (row) => number(row[field], { failed: "bad", dlq: "bad" }[kind]) })),
      { name: "Begun", less: true, cell: (row) => h("span.nowrap", {}, instant(row.createdAt)) },
      { name: "Ended", cell: (row) => h("span.nowrap", {}, row.endedAt ? instant(row.endedAt) : h("span.zero", {}, "–")) },
    ],
  });
  const list = pages({ into: rows, fetch: listed("/groups", "groups") });
  return listView("Groups", { rows, list });
}

function openGroup({ follow }, id) {
  const actions = h("div.actions");
  const state = h("span");
  const figures = h("div.figures", { "aria-label": "Members" });
  const progress = h("div.stack");
  const facts = h("dl.facts");
  let group = null;

  async function change(verb, question, done) {
    if (!(await confirm(question))) return;
    await tried(async () => {
      await post(path("groups", id, verb), {});
      toast(done);
      feed.refresh();
    });
  }

  const seal = () => change("seal", { title: `Seal ${id}?`, text: "Nobody but members that have not ended can add to it any more.", button: "Seal" }, `${id} is sealed`);
  const cancel = () => change("cancel", { title: `Cancel ${id}?`, text: `It is sealed. Of its members ${count(group.live)} have not ended: they are cancelled, a few at a time.`, button: "Cancel the group", danger: true }, `${id} is being cancelled`);

  function draw() {
    patch(state, stateTag(group));
    patch(figures, MEMBERS.map(([field, name, kind]) => figure({ name, kind, value: short(group[field]) })));
    patch(progress, bar(group));
    const fact = (term, value) => [h("dt", {}, term), h("dd", {}, value)];
    const waits = group.waitsFor || [];
    patch(facts,
      waits.length > 0 && fact("Waits", waits.map((each) => WAITS[each] || each).join(", ")),
      group.reason && fact("Reason", group.reason === "NOT_SEALED" ? "it was not sealed in time" : group.reason),
      fact("Completion task", group.thenCommand ? h("a", { href: href("queues", group.thenCommand.toLowerCase()) }, group.thenCommand) : "none"),
      group.thenCommand && fact("It is made", ONCE[group.thenIf] || group.thenIf),
      group.thenTaskId && fact("Its id", h("a.mono.break", { href: href("tasks", group.thenTaskId) }, group.thenTaskId)),
      fact("When a member fails", group.onFailure === "cancel" ? "the others are cancelled" : "the others go on"),
      fact("Begun", instant(group.createdAt)),
      group.sealBy && fact("To be sealed", due(group.sealBy)),
      group.sealedAt && fact("Sealed", instant(group.sealedAt)),
      group.endedAt && fact("Ended", instant(group.endedAt)));
    patch(actions, administers() && !group.endedAt && [
      !group.sealedAt && h("button", { type: "button", onclick: seal }, "Seal"),
      h("button.danger", { type: "button", disabled: group.status === "CANCELLING", onclick: cancel }, "Cancel"),
    ]);
  }

  function take(part, data) {
    if (part === "view") {
      group = data;
      draw();
    }
    if (part === "trouble" && data && data.status === 404) put(box, h("p.empty", {}, group ? "This group is gone: it is kept for seven days after its end." : "There is no group of this name."));
  }

  const unknown = () => group || patch(facts, h("dt", {}, told("…")));
  unknown();
  onDoubt(unknown);
  const feed = follow("group", { id }, take);
  const box = h("div.stack", {}, figures, card("Progress", progress), card("Group", facts));
  return { title: "Group " + id, node: h("div", {}, head(id, { trail: { text: "Groups", href: href("groups") }, beside: state, tools: actions }), box) };
}
