// Webhooks: results nobody took, results on their way, and who hears of queues that fill.

import { AT_ONCE } from "../bulk.js";
import { confirm } from "../dialog.js";
import { h, patch } from "../dom.js";
import { count, plural, span } from "../format.js";
import { post } from "../http.js";
import { card, head } from "../parts.js";
import { href } from "../router.js";
import { listed, pages } from "../search.js";
import { administers } from "../state.js";
import { at, due, instant, shortId } from "../states.js";
import { table } from "../table.js";
import { toast, tried } from "../toast.js";

const task = { name: "Task", cell: (row) => [h("a.mono.nowrap", { href: href("tasks", row.taskId), title: row.taskId }, shortId(row.taskId)), h("div.dim.small.break", {}, row.command)] };
const target = { name: "Target", kind: "target", less: true, cell: (row) => h("span.clip.mono", { title: row.url }, row.url) };
const tries = { name: "Attempts", num: true, less: true, cell: (row) => count(row.attempts) };
const error = { name: "Error", wide: true, cell: (row) => h("span.clip", { title: row.error }, row.error || "–") };

export function open() {
  const selection = new Set();
  const tools = h("div.actions");
  const dead = table({
    caption: "Dead deliveries",
    empty: "Every callback has been taken, or is still being tried.",
    key: (row) => row.id,
    selection: administers() ? selection : null,
    onselect: drawTools,
    columns: [task, target, tries, error, { name: "Given up", cell: (row) => h("span.nowrap", {}, instant(row.diedAt)) }],
  });
  const pending = table({
    caption: "Deliveries on their way",
    empty: "Nothing is on its way.",
    key: (row) => row.id,
    columns: [task, target, tries, error, { name: "Next attempt", cell: (row) => h("span.nowrap", {}, due(row.nextAttemptAt)) }],
  });
  const listening = table({
    caption: "Subscriptions",
    empty: "Nobody has asked to be told of queues that fill.",
    key: (row) => row.subscriptionId,
    columns: [
      { name: "Worker", cell: (row) => h("span.break", {}, row.workerId) },
      { name: "Queues", cell: (row) => h("span.break", {}, row.eventTypes.length ? row.eventTypes.join(", ") : h("span.dim", {}, "every queue")) },
      { name: "Target", kind: "target", less: true, cell: (row) => h("span.clip.mono", { title: row.callbackUrl }, row.callbackUrl) },
      { name: "Told", less: true, cell: (row) => [row.deliveryMode, row.groupId && h("div.dim.small.break", {}, "group " + row.groupId), row.minIntervalSeconds > 0 && h("div.dim.small", {}, "at most every " + span(row.minIntervalSeconds))] },
      { name: "Ends", cell: (row) => h("span.nowrap", {}, due(row.expiresAt)) },
    ],
  });
  const ofDeliveries = (status, shown) => pages({
    into: shown,
    drawn: drawTools,
    fetch: listed("/deliveries", "deliveries", () => ({ status })),
  });
  const deadList = ofDeliveries("dead", dead);
  const pendingList = ofDeliveries("pending", pending);
  const listeningList = pages({ into: listening, fetch: listed("/subscriptions", "subscriptions") });
  const lists = [deadList, pendingList, listeningList];

  async function replay(what) {
    const all = what.all === true;
    const sure = await confirm({
      title: all ? "Replay all dead deliveries?" : `Replay ${plural(what.ids.length, "delivery", "deliveries")}?`,
      text: "They are tried again, from the first attempt and with the ids they had: a target that took one in spite of its answer can tell.",
      button: all ? "Replay all" : `Replay ${count(what.ids.length)}`,
    });
    if (!sure) return;
    let replayed = 0;
    await tried(async () => {
      if (all) replayed = (await post("/deliveries/replay", { all: true })).replayed;
      else for (let from = 0; from < what.ids.length; from += AT_ONCE) replayed += (await post("/deliveries/replay", { ids: what.ids.slice(from, from + AT_ONCE) })).replayed;
      toast(`${plural(replayed, "delivery", "deliveries")} on the way again`);
    });
    refresh();
  }

  const keys = h("div.pad", {});
  function drawKeys(shown) {
    patch(keys, ...(shown
      ? shown.map((key) => h("p.break", {}, h("span.mono", {}, key.key), h("div.dim.small", {}, `key id ${key.id}, version ${key.version}, `, key.signsUntil ? ["signs until ", at(key.signsUntil)] : "current")))
      : [h("p.dim", {}, "Receivers verify callbacks and notices with this tenant's key. Showing it leaves an audit record.")]));
  }
  async function showKeys(path, body) {
    await tried(async () => drawKeys((await post(path, body)).keys));
  }
  async function rotate() {
    const sure = await confirm({
      title: "Rotate the webhook key?",
      text: "Calls carry a new signature at once, and that of the previous key for a week more: give your receivers the new key in this time.",
      button: "Rotate",
    });
    if (sure) await showKeys("/webhooks/keys/rotate", {});
  }
  const keyTools = h("div.actions", {},
    h("button", { type: "button", onclick: () => showKeys("/webhooks/keys") }, "Show keys"),
    h("button", { type: "button", onclick: rotate }, "Rotate key"));
  drawKeys(null);

  function drawTools() {
    if (!administers()) return;
    const some = selection.size > 0;
    patch(tools,
      some && h("span.dim", {}, `${count(selection.size)} selected`),
      h("button", { type: "button", disabled: !some, onclick: () => replay({ ids: [...selection] }) }, "Replay selected"),
      h("button", { type: "button", disabled: !deadList.rows().length, onclick: () => replay({ all: true }) }, "Replay all"));
  }

  function refresh() {
    selection.clear();
    lists.forEach((list) => list.restart());
  }

  refresh();
  return {
    title: "Webhooks",
    close: () => lists.forEach((list) => list.stop()),
    node: h("div", {}, head("Webhooks", { actions: h("button", { type: "button", onclick: refresh }, "Refresh") }), h("div.stack", {},
      card("Dead deliveries", dead.node, { flush: true, aside: h("div.actions", {}, deadList.node, tools) }),
      card("On their way", pending.node, { flush: true, aside: pendingList.node }),
      card("Subscriptions", listening.node, { flush: true, aside: listeningList.node }),
      administers() && card("Keys", keys, { aside: keyTools }))),
  };
}
