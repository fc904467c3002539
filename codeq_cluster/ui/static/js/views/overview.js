// Overview: what flows, what waits, and what is wrong.

import { chart, Ring } from "../chart.js";
import { onDoubt, told } from "../doubt.js";
import { h, patch, put } from "../dom.js";
import { count, rate, short, span } from "../format.js";
import { card, figure, head, number, perSecond, waited } from "../parts.js";
import { href, keep } from "../router.js";
import { administers, seesTenant } from "../state.js";
import { table } from "../table.js";
import { newTaskButton } from "./new-task.js";

const FLOWS = [
  { name: "created", label: "Created", kind: "created" },
  { name: "started", label: "Claimed", kind: "started" },
  { name: "completed", label: "Completed", kind: "completed" },
  { name: "failed", label: "Failed", kind: "failed" },
];
const DEPTHS = [
  { name: "ready", label: "Ready", kind: "ready" },
  { name: "inProgress", label: "In progress", kind: "in-progress" },
  { name: "delayed", label: "Delayed", kind: "delayed" },
  { name: "dlq", label: "Dead letters", kind: "dlq" },
];

// Both charts of a queue, a tenant or the cluster.
export function charts(step, onstep) {
  const ring = new Ring();
  const flows = chart({ title: "Tasks a second", lines: FLOWS, scale: (slot, seconds) => slot / seconds, unit: "/s" });
  const depths = chart({ title: "Tasks by state", lines: DEPTHS });
  const range = h("select", { "aria-label": "Time shown", onchange: (event) => onstep(Number(event.target.value)) },
    h("option", { value: 5, selected: step === 5 }, "15 minutes"), h("option", { value: 60, selected: step === 60 }, "3 hours"));
  return {
    range,
    node: h("div.columns", {}, card("Throughput", flows.node, { aside: flows.legend }), card("Depth", depths.node, { aside: depths.legend })),
    take(series) {
      ring.take(series);
      flows.draw(ring);
      depths.draw(ring);
    },
  };
}

export function open({ query, follow }) {
  const step = query.get("step") === "60" ? 60 : 5;
  const tenant = query.get("tenant") || "";
  const figures = h("div.figures", { "aria-label": "Totals" });
  const problems = h("ul.problems");
  const drawn = charts(step, (chosen) => {
    keep({ step: chosen === 60 ? 60 : "", tenant });
    dispatchEvent(new PopStateEvent("popstate"));
  });
  const waiting = queueTable("Longest waiting", "Nothing waits.");
  const busy = queueTable("Busiest", "Nothing was claimed in the last minute.", true);
  const tenants = tenantTable();
  const tenantCard = h("div");
  let totals = null;
  let view = null;

  function drawProblems() {
    if (view && view.problems.length) {
      patch(problems, view.problems.map((each) => h("li", { class: each.severity, "data-key": each.id }, each.link ? h("a", { href: href(...each.link.split("/")) }, each.text) : each.text)));
      return;
    }
    const doubtful = told("", { everyNode: true });
    patch(problems, h("li", { class: doubtful ? "warn" : "good" }, doubtful || (view ? "Nothing is wrong." : "…")));
  }

  drawProblems();
  onDoubt(drawProblems);
  drawFigures();
  function drawFigures() {
    const rates = (view && view.rates) || {};
    const value = (number) => (totals ? short(number) : "–");
    const oldest = view && view.waiting[0];
    patch(figures, [
      figure({ name: "Created", kind: "created", value: [view ? rate(rates.created) : "–", h("small", {}, " /s")], note: "last minute" }),
      figure({ name: "Completed", kind: "completed", value: [view ? rate(rates.completed) : "–", h("small", {}, " /s")], note: "last minute" }),
      figure({ name: "Failed", kind: "failed", value: [view ? rate(rates.failed) : "–", h("small", {}, " /s")], note: "last minute" }),
      figure({ name: "Ready", kind: "ready", value: value(totals && totals.ready), note: view && oldest ? "oldest " + span(oldest.oldestReadySeconds) : "", href: href("queues") + "?sort=oldest&order=desc" }),
      figure({ name: "In progress", kind: "in-progress", value: value(totals && totals.inProgress), href: href("workers") }),
      figure({ name: "Delayed", kind: "delayed", value: value(totals && totals.delayed), href: href("delayed") }),
      totals && totals.held > 0 && figure({ name: "Held", value: short(totals.held), note: "by key or task" }),
      figure({ name: "Dead letters", kind: "dlq", value: value(totals && totals.dlq), href: href("dead-letters") }),
    ]);
  }

  function take(part, data) {
    if (part === "totals") totals = data;
    if (part === "series" && data) drawn.take(data);
    if (part === "view") {
      view = data;
      waiting.draw(data.waiting);
      busy.draw(data.busy);
      drawProblems();
      if (data.tenants) {
        tenants.draw(data.tenants);
        if (!tenantCard.firstChild) put(tenantCard, card(`Tenants`, tenants.node, { flush: true }));
      }
    }
    if (part === "view" || part === "totals") drawFigures();
  }

  follow("overview", { step: step === 60 ? 60 : "", tenant }, take);
  const own = seesTenant();
  return {
    title: "Overview",
    node: h("div", {}, head("Overview", { actions: [drawn.range, administers() && newTaskButton()] }), h("div.stack", {},
      own && figures,
      card("What needs attention", problems, { flush: true }),
      tenant && h("p.small", {}, `The charts show tenant ${tenant === "_" ? "_ (default)" : tenant}. `, h("a", { href: href("overview") }, own ? "Show my own" : "Show the cluster")),
      drawn.node,
      own && h("div.columns", {}, card("Longest waiting", waiting.node, { flush: true, aside: h("a.small", { href: href("queues") }, "All queues") }), card("Busiest", busy.node, { flush: true })),
      tenantCard)),
  };
}

function queueTable(caption, empty, everyNode) {
  return table({
    caption,
    everyNode,
    empty,
    key: (row) => row.command,
    columns: [
      { name: "Queue", wide: true, cell: (row) => [h("a", { href: href("queues", row.command) }, row.command), row.paused && [" ", h("span.tag.warn", {}, "paused")]] },
      { name: "Ready", num: true, cell: (row) => number(row.ready) },
      { name: "Oldest", num: true, cell: (row) => waited(row.oldestReadySeconds) },
      { name: "Claimed /s", num: true, less: true, cell: (row) => perSecond(row.rates.started) },
      { name: "Failed /s", num: true, cell: (row) => perSecond(row.rates.failed, "bad") },
    ],
  });
}

function tenantTable() {
  const share = (totals) => {
    const parts = [["ready", totals.ready], ["in-progress", totals.inProgress], ["delayed", totals.delayed], ["dlq", totals.dlq]];
    const all = parts.reduce((sum, [, number]) => sum + number, 0) || 1;
    const bar = h("div.share", { "aria-hidden": "true" });
    for (const [kind, number] of parts) {
      const part = h("i", { class: kind });
      part.style.flexGrow = String(number / all);
      bar.append(part);
    }
    return bar;
  };
  return table({
    caption: "Tenants by tasks waiting",
    empty: "No tenant has tasks.",
    key: (row) => row.tenant || "_ (default)",
    columns: [
      { name: "Tenant", kind: "name", cell: (row) => h("a", { href: href("overview") + "?tenant=" + encodeURIComponent(row.tenant || "_"), title: "Show its charts" }, row.tenant || "_ (default)") },
      { name: "", wide: true, less: true, cell: (row) => share(row.totals) },
      { name: "Queues", num: true, less: true, cell: (row) => count(row.queues) },
      { name: "Ready", num: true, cell: (row) => number(row.totals.ready) },
      { name: "In progress", num: true, cell: (row) => number(row.totals.inProgress) },
      { name: "Delayed", num: true, less: true, cell: (row) => number(row.totals.delayed) },
      { name: "Dead letters", num: true, cell: (row) => number(row.totals.dlq, "bad") },
    ],
  });
}
