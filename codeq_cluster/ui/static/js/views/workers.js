// Workers: who asks for work, and who holds which tasks.

import { h, patch } from "../dom.js";
import { count, plural, short } from "../format.js";
import { figure, head, number } from "../parts.js";
import { href } from "../router.js";
import { instant } from "../states.js";
import { table } from "../table.js";

export function open({ follow }) {
  const figures = h("div.figures", { "aria-label": "Totals" });
  const more = h("div.pager");
  const rows = table({
    caption: "Workers",
    everyNode: true,
    empty: "No worker has asked for work since the nodes started, and none holds a task.",
    key: (row) => row.worker,
    columns: [
      { name: "Worker", kind: "worker", cell: (row) => h("span.break", {}, row.worker) },
      { name: "Last poll", cell: (row) => h("span.nowrap", {}, row.waiting ? h("span.tag.good", {}, "waiting now") : row.lastPollAt ? instant(row.lastPollAt) : h("span.zero", {}, "not seen")) },
      { name: "Asks for", wide: true, less: true, cell: queues },
      { name: "Through", less: true, cell: (row) => row.nodes.join(", ") || h("span.zero", {}, "–") },
      { name: "Leases", num: true, cell: (row) => (row.leases ? h("a", { href: held(row.worker) }, count(row.leases)) : number(0)) },
      { name: "Oldest lease", less: true, cell: (row) => [h("span.nowrap", {}, row.oldestClaimAt ? instant(row.oldestClaimAt) : h("span.zero", {}, "–")), row.expired > 0 && [" ", h("span.tag.warn", {}, `${count(row.expired)} over`)]] },
    ],
  });

  follow("workers", {}, (part, data) => {
    if (part !== "view") return;
    const waiting = data.workers.filter((row) => row.waiting).length;
    const holding = data.workers.filter((row) => row.leases).length;
    patch(figures, [
      figure({ name: "Workers", value: short(data.all), note: "seen or holding tasks" }),
      figure({ name: "Waiting now", kind: "completed", value: short(waiting), note: "for a task" }),
      figure({ name: "Holding tasks", kind: "started", value: short(holding) }),
      figure({ name: "Leases", kind: "in-progress", value: short(data.leases) + (data.leasesAll ? "" : "+"), note: data.leasesAll ? "" : "more are not counted here", href: href("tasks") + "?state=in-progress" }),
    ]);
    rows.draw(data.workers);
    patch(more, data.all > data.workers.length && `The ${count(data.workers.length)} that came last, of ${plural(data.all, "worker")}.`);
  });
  return { title: "Workers", node: h("div", {}, head("Workers"), h("div.stack", {}, figures, h("section.card", { "aria-label": "Workers" }, rows.node)), more) };
}

function queues(row) {
  if (!row.lastPollAt) return h("span.zero", {}, "–");
  if (!row.commands.length) return h("span.dim", {}, "every queue");
  const links = row.commands.flatMap((name, n) => [n > 0 && ", ", h("a", { href: href("queues", name.toLowerCase()) }, name)]);
  return h("span.break", {}, links, row.moreCommands > 0 && h("span.dim", {}, ` and ${count(row.moreCommands)} more`));
}

function held(worker) {
  return href("tasks") + "?state=in-progress&worker=" + encodeURIComponent(worker);
}
