// The dead letters of one queue: what they died of, and what is done about them.

import { doubt, onDoubt } from "../doubt.js";
import { h, patch, put } from "../dom.js";
import { count } from "../format.js";
import { get, path, query as asQuery } from "../http.js";
import { card, head } from "../parts.js";
import { href, keep } from "../router.js";
import { listed, pages } from "../search.js";
import { administers } from "../state.js";
import { instant, shortId } from "../states.js";
import { table } from "../table.js";
import { deleting, requeueing } from "./triage.js";

const KINDS_AT_FIRST = 20_000; // Dead letters looked at before the count asks whether to go on.
const OTHER = "(other errors)";

export function openQueue({ query, follow }, name) {
  const queue = name.toLowerCase();
  const where = path("queues", queue, "dlq");
  const selection = new Set();
  const tools = h("div.actions");
  const all = h("div.actions");
  const counted = h("span.dim.small");
  const chosenKind = h("div.filters");
  let kind = query.get("kind") || "";
  let total = null;
  let counting = null;

  const kinds = table({
    caption: "Kinds of errors",
    empty: "There are no dead letters.",
    key: (row) => row.kind,
    columns: [
      { name: "Died of", wide: true, cell: (row) => h("button.link.clip.left", { type: "button", "aria-pressed": String(row.kind === kind), title: row.sample, onclick: () => choose(row.kind === kind ? "" : row.kind) }, row.kind) },
      { name: "Dead letters", num: true, cell: (row) => count(row.count) },
      { name: "Newest", less: true, cell: (row) => h("span.nowrap", {}, instant(row.newestAt)) },
      { name: "Oldest", less: true, cell: (row) => h("span.nowrap", {}, instant(row.oldestAt)) },
      ...(administers() ? [{ name: "", cell: (row) => row.kind !== OTHER && h("span.nowrap", {},
        h("button.plain", { type: "button", "aria-label": "Requeue those of " + row.kind, onclick: () => requeueing(queue, { kind: row.kind }, changed) }, "Requeue"),
        h("button.plain", { type: "button", "aria-label": "Delete those of " + row.kind, onclick: () => deleting(queue, { kind: row.kind }, changed) }, "Delete")) }] : []),
    ],
  });

  const rows = table({
    caption: "Dead letters",
    empty: "There are no dead letters of this kind.",
    key: (row) => row.id,
    selection: administers() ? selection : null,
    onselect: drawTools,
    columns: [
      { name: "Task", cell: (row) => h("a.mono.nowrap", { href: href("tasks", row.id), title: row.id }, shortId(row.id)) },
      { name: "Died", cell: (row) => h("span.nowrap", {}, instant(row.since)) },
      { name: "Attempts", num: true, less: true, cell: (row) => `${row.attempts || 0} of ${row.maxAttempts}` },
      { name: "Error", wide: true, cell: (row) => h("span.clip", {}, row.error || "") },
    ],
  });
  const list = pages({ into: rows, fetch: listed(where, "tasks", () => ({ kind })) });

  // Counted part by part over all of them: each request looks at some thousands.
  async function countKinds(most = KINDS_AT_FIRST) {
    const mine = new AbortController();
    if (counting) counting.abort();
    counting = mine;
    const found = new Map();
    let cursor = "";
    let looked = 0;
    try {
      do {
        const part = await get(where + "/kinds" + asQuery({ cursor }), { signal: mine.signal });
        for (const each of part.kinds) {
          const known = found.get(each.kind);
          if (known) {
            known.count += each.count;
            known.oldestAt = each.oldestAt < known.oldestAt ? each.oldestAt : known.oldestAt;
            known.newestAt = each.newestAt > known.newestAt ? each.newestAt : known.newestAt;
          } else found.set(each.kind, { ...each });
          looked += each.count;
        }
        cursor = part.cursor || "";
        kinds.draw([...found.values()].sort((one, other) => other.count - one.count), cursor && "None found so far.");
        put(counted, cursor ? `the newest ${count(looked)}` : `all ${count(looked)}`,
          cursor && looked >= most && [" ", h("button.link", { type: "button", onclick: () => countKinds(Infinity) }, "count all")]);
      } while (cursor && looked < most);
    } catch (failure) {
      if (failure.name === "AbortError") return;
      if (found.size) put(counted, `the newest ${count(looked)}. Cannot tell of the others: ${failure.message}.`);
      else kinds.fail(failure.message, countKinds);
    }
  }

  function choose(next) {
    kind = next;
    keep({ kind });
    selection.clear();
    patch(chosenKind, kind && h("span", {}, "Only ", h("code", {}, kind), " ", h("button.link", { type: "button", onclick: () => choose("") }, "show all")));
    drawTools();
    list.restart();
  }

  function changed() {
    selection.clear();
    drawTools();
    list.restart();
    countKinds();
    feed.refresh();
  }

  function drawTools() {
    if (!administers()) return;
    const ids = [...selection];
    const some = ids.length > 0;
    patch(tools,
      h("span.dim", {}, some ? `${count(ids.length)} selected` : "Select some, or act on all"),
      h("button", { type: "button", disabled: !some, onclick: () => requeueing(queue, { ids: [...selection] }, changed) }, "Requeue selected"),
      h("button", { type: "button", disabled: !some, onclick: () => deleting(queue, { ids: [...selection] }, changed) }, "Delete selected"));
    const none = total === 0;
    patch(all,
      h("button", { type: "button", disabled: none, onclick: () => requeueing(queue, { all: true }, changed) }, "Requeue all"),
      h("button.danger", { type: "button", disabled: none, onclick: () => deleting(queue, { all: true }, changed) }, "Delete all"));
  }

  const title = h("span");
  const drawTotal = () => total !== null && put(title, h("span.tag", { class: total ? "dead" : "" }, total || !doubt() ? count(total) : "?"));
  onDoubt(drawTotal);
  const feed = follow("queue", { queue }, (part, data) => {
    if (part !== "view") return;
    const grown = total !== null && data.queue.dlq !== total;
    total = data.queue.dlq;
    drawTotal();
    drawTools();
    if (grown && !selection.size) countKinds();
  });
  choose(kind);
  countKinds();
  return {
    title: "Dead letters of " + queue,
    close: () => {
      list.stop();
      if (counting) counting.abort();
    },
    node: h("div", {}, head(queue, { trail: { text: "Dead letters", href: href("dead-letters") }, beside: title, tools: all }), h("div.stack", {},
      card("By kind of error", kinds.node, { flush: true, aside: counted }),
      h("div", {}, chosenKind, card("Dead letters", rows.node, { flush: true, aside: tools }), list.node))),
  };
}
