// The keys of one queue: how much work each has, and what keeps it from going on.

import { h } from "../dom.js";
import { plural, span } from "../format.js";
import { get, path, query as asQuery } from "../http.js";
import { card, number } from "../parts.js";
import { href } from "../router.js";
import { pages } from "../search.js";
import { due } from "../states.js";
import { table } from "../table.js";

const SHOWN = 50;

// Why nothing of a key goes; nothing if only its other tasks hold its tasks.
function rests(key) {
  if (key.own?.paused) return h("span.tag.warn", {}, "paused");
  if (key.stoppedBy) return ["a ", h("a", { href: href("tasks", key.stoppedBy) }, "dead letter"), " stops it"];
  if (key.heldUntil) return ["a worker holds it, ", due(key.heldUntil)];
  if (key.limitedUntil) return ["its rate, ", due(key.limitedUntil)];
  return h("span.zero", {}, "–");
}

// What a key has of its own, beside the rule of its queue's keys.
function limits({ maxRunning, rate, weight } = {}) {
  return [
    maxRunning && `${plural(maxRunning, "task")} at once`,
    rate && `${plural(rate.count, "claim")} in ${span(rate.perSeconds)}, ${rate.burst} after a pause`,
    weight > 1 && `${weight} turns`,
  ].filter(Boolean).join(", ");
}

// Nothing is asked for until `show` says that the queue has keys.
export function keysOf(queue) {
  let more = false;
  const rows = table({
    caption: "Keys",
    empty: "No key has tasks, or limits of its own.",
    key: (row) => row.key,
    columns: [
      { name: "Key", kind: "schedule", cell: (row) => [h("span.mono.break", {}, row.key), h("div.dim.small", {}, limits(row.own))] },
      { name: "Held", num: true, cell: (row) => number(row.held) },
      { name: "Ready", num: true, cell: (row) => number(row.ready) },
      { name: "In progress", num: true, cell: (row) => number(row.inProgress) },
      { name: "Backing off", num: true, less: true, cell: (row) => number(row.backingOff || 0) },
      { name: "Waits for", cell: rests },
    ],
  });
  const list = pages({
    into: rows,
    fetch: async (_, signal) => {
      const found = await get(path("queues", queue, "keys") + asQuery({ limit: SHOWN }), { signal });
      more = found.more || found.keys.length === SHOWN;
      return { rows: found.keys };
    },
    end: () => more ? "the busiest of many" : "all there are",
  });
  const node = card("Keys", rows.node, {
    flush: true,
    aside: h("div.actions", {}, list.node, h("button", { type: "button", onclick: () => list.restart() }, "Refresh")),
  });
  node.hidden = true;
  return {
    node,
    stop: list.stop,
    show: () => {
      if (!node.hidden) return;
      node.hidden = false;
      list.restart();
    },
  };
}
