// Limits: what the queues that share each may do, and what they do now.

import { h, patch } from "../dom.js";
import { count, span } from "../format.js";
import { head } from "../parts.js";
import { href } from "../router.js";
import { due } from "../states.js";
import { table } from "../table.js";

const none = () => h("span.zero", {}, "–");

// What keeps the next task of its queues from going.
function waits({ running, maxRunning, limitedUntil, heldUntil }) {
  if (heldUntil) return [h("span.tag.warn", {}, "held"), " by a worker, it goes on ", due(heldUntil)];
  if (maxRunning && running >= maxRunning) return h("span.nowrap", {}, "a free place");
  if (limitedUntil) return ["the next token, ", due(limitedUntil)];
  return none();
}

function pace({ rate }) {
  if (!rate) return none();
  return [h("span.nowrap", {}, `${count(rate.count)} in ${span(rate.perSeconds)}`), h("div.dim.small.nowrap", {}, `${count(rate.burst)} after a pause`)];
}

function sharers({ queues }) {
  if (!queues.length) return h("span.dim", {}, "none names it");
  return h("span.break", {}, queues.flatMap((name, n) => [n > 0 && ", ", h("a", { href: href("queues", name) }, name)]));
}

export function open({ follow }) {
  const more = h("div.pager");
  const rows = table({
    caption: "Limits",
    empty: () => ["No queues share a limit. This makes one:", h("div", {}, h("code.break", {}, "codeq-cluster limit put NAME --max 20"))],
    key: (row) => row.name,
    columns: [
      { name: "Limit", kind: "schedule", cell: (row) => h("span.break", {}, row.name) },
      { name: "In progress", num: true, title: "Tasks of its queues in progress now, and at most", cell: (row) => [count(row.running), row.maxRunning && h("span.dim", {}, " of " + count(row.maxRunning))] },
      { name: "Rate", less: true, title: "Claims of its queues' tasks", cell: pace },
      { name: "Waits for", cell: waits },
      { name: "Queues", wide: true, cell: sharers },
    ],
  });
  follow("limits", {}, (part, data) => {
    if (part !== "view") return;
    rows.draw(data.limits);
    patch(more, data.more && `The first ${count(data.limits.length)} by name: codeq-cluster limit ls shows all.`);
  });
  rows.draw([], "…");
  return { title: "Limits", node: h("div", {}, head("Limits"), h("section.card", { "aria-label": "Limits" }, rows.node), more) };
}
