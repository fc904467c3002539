// One queue: how full it is, what flows, what governs it, who works on it.

import { AT_ONCE, inParts } from "../bulk.js";
import { confirm } from "../dialog.js";
import { onDoubt, told } from "../doubt.js";
import { h, patch } from "../dom.js";
import { bytes, plural, short, span } from "../format.js";
import { path, post } from "../http.js";
import { card, figure, head, waited } from "../parts.js";
import { href, keep } from "../router.js";
import { administers } from "../state.js";
import { due, instant } from "../states.js";
import { table } from "../table.js";
import { toast, tried } from "../toast.js";
import { keysOf } from "./keys.js";
import { newTaskButton } from "./new-task.js";
import { charts } from "./overview.js";

// What the queues that share a limit do now, as children of a node.
function shared({ running, maxRunning, limitedUntil, heldUntil }) {
  const now = maxRunning ? `${running} of ${plural(maxRunning, "task")} at once` : `${plural(running, "task")} in progress`;
  return [now, limitedUntil && [", the next token comes ", due(limitedUntil)], heldUntil && [", a worker holds it: it goes on ", due(heldUntil)]];
}

// What governs the queue's tasks that say nothing themselves, and whether the topic or the broker says it.
function inEffect(topic, defaults) {
  const value = (name, shown = String, otherwise) => (topic[name] ? [shown(topic[name]), "topic"] : [otherwise || shown(defaults[name]), "broker's default"]);
  const queueOf = (name) => h("a", { href: href("dead-letters", name) }, name);
  return [
    ["Attempts", value("maxAttempts")],
    ["In progress at once", value("maxConsumers", String, "as many as are claimed")],
    ["Weight", value("weight", String, "1")],
    ["Priorities", value("priorityTiers", (tiers) => tiers.join(", "), "any from 0 to 9")],
    ["Time limit", value("timeoutSeconds", span, "none: as the worker says")],
    ["Backoff", value("backoffPolicy")],
    ["Backoff starts at", value("backoffBaseSeconds", span)],
    ["Backoff is at most", value("backoffMaxSeconds", span)],
    ["Dead letters go to", value("deadLetterTopicRef", queueOf, "the queue's own")],
    ["Dead letters are kept", value("dlqRetentionSeconds", span)],
    ["Results are kept", value("retentionSeconds", span)],
  ];
}

export function openQueue({ query, follow }, name) {
  const queue = name.toLowerCase();
  const step = query.get("step") === "60" ? 60 : 5;
  const drawn = charts(step, (chosen) => {
    keep({ step: chosen === 60 ? 60 : "" });
    dispatchEvent(new PopStateEvent("popstate"));
  });
  const figures = h("div.figures", { "aria-label": "Totals" });
  const policy = h("dl.facts");
  const actions = h("div.actions");
  const state = h("span");
  const workers = table({
    caption: "Workers that ask for this queue",
    everyNode: true,
    empty: () => ["No worker has asked for it since the nodes started. This starts one:", h("div", {}, h("code.break", {}, `codeq-cluster worker start --commands ${queue} `, h("span.nowrap", {}, "--handler PROGRAM")))],
    key: (row) => row.worker + " " + row.node,
    columns: [
      { name: "Worker", wide: true, cell: (row) => h("span.break", {}, row.worker) },
      { name: "Last poll", cell: (row) => h("span.nowrap", {}, row.waiting ? "waiting now" : instant(row.lastPollAt)) },
      { name: "Node", less: true, cell: (row) => row.node },
    ],
  });
  const keys = keysOf(queue);
  let view = null;

  async function change(verb, done) {
    await tried(async () => {
      await post(path("queues", queue, verb));
      toast(done);
      feed.refresh();
    });
  }

  async function pause() {
    const sure = await confirm({
      title: `Pause ${queue}?`,
      text: "Nobody can claim from it until it is resumed. Tasks in progress go on, and tasks can be added.",
      button: "Pause",
    });
    if (sure) change("pause", `${queue} is paused`);
  }

  async function purge() {
    const { ready, delayed, held } = view.queue;
    const waiting = ready + delayed + held;
    const kinds = [plural(ready, "ready one"), plural(delayed, "delayed one")];
    if (held > 0) kinds.push(plural(held, "held one"));
    const sure = await confirm({
      title: `Purge ${queue}?`,
      text: `${plural(waiting, "waiting task")}, ${kinds.slice(0, -1).join(", ")} and ${kinds.at(-1)}, are cancelled: they end as failed, and those who wait for their results are told so. There is no undo. Tasks in progress go on.`,
      button: `Cancel ${plural(waiting, "task")}`,
      danger: true,
      typed: queue,
    });
    if (!sure) return;
    const { changed } = await inParts({
      doing: "Cancelling",
      expected: waiting,
      step: (done) => post(path("queues", queue, "purge"), { limit: Math.min(AT_ONCE, waiting - done) }),
    });
    toast(`${plural(changed, "task")} of ${queue} cancelled`);
    feed.refresh();
  }

  function draw() {
    const { queue: row, totals } = view;
    const to = (status) => href("tasks") + `?command=${encodeURIComponent(queue)}&state=${status}`;
    patch(figures, [
      figure({ name: "Ready", kind: "ready", value: short(row.ready), note: row.oldestReadySeconds ? "oldest " + span(row.oldestReadySeconds) : "", href: to("ready") }),
      figure({ name: "In progress", kind: "in-progress", value: short(row.inProgress), href: to("in-progress") }),
      figure({ name: "Delayed", kind: "delayed", value: short(row.delayed), href: href("delayed") + "?command=" + encodeURIComponent(queue) }),
      row.held > 0 && figure({ name: "Held", value: short(row.held), note: "by key or task", href: to("held") }),
      figure({ name: "Dead letters", kind: "dlq", value: short(row.dlq), href: href("dead-letters", queue) }),
      figure({ name: "Completed", kind: "completed", value: short(totals.completed), note: "kept", href: to("completed") }),
      figure({ name: "Failed", kind: "failed", value: short(totals.failed), note: "kept", href: to("failed") }),
      figure({ name: "Stored", value: bytes(totals.storedBytes), note: "payloads, results" }),
    ]);
    const topic = view.topic;
    const fact = (term, text) => [h("dt", {}, term), h("dd", {}, text)];
    patch(policy,
      fact("Paused", view.pausedBy || row.paused ? [`by ${view.pausedBy || "somebody"}`, view.pausedAt && [", ", instant(view.pausedAt)]] : "no"),
      view.heldUntil && fact("Held", ["by a worker: nothing of it goes, ", due(view.heldUntil)]),
      view.limit && fact(["Shares limit ", h("a", { href: href("limits") }, view.limit.name)], shared(view.limit)),
      fact("Topic", topic ? h("a", { href: href("topics", topic.name) }, `${topic.name}, version ${topic.version}`) : [told("none: the broker's own policy"), administers() && [" ", h("a.small", { href: href("topics", queue) }, "make one")]]),
      inEffect(topic || {}, view.defaults).map(([term, [text, from]]) => fact(term, [text, " ", h("span.dim.small", {}, from)])),
      fact("Longest waiting", waited(row.oldestReadySeconds)));
    if ((topic && topic.flow) || row.held > 0) keys.show();
    const isHeld = view.heldUntil || (view.limit && view.limit.heldUntil);
    patch(state, [row.paused && h("span.tag.warn", {}, "paused"), isHeld && h("span.tag.warn", {}, "held")]);
    workers.draw(view.polls);
    patch(actions, drawn.range, administers() && [
      newTaskButton({ command: queue }),
      row.paused
        ? h("button", { type: "button", onclick: () => change("resume", `${queue} is resumed`) }, "Resume")
        : h("button", { type: "button", onclick: pause }, "Pause"),
      h("button.danger", { type: "button", disabled: row.ready + row.delayed + row.held === 0, onclick: purge }, "Purge"),
    ]);
  }

  onDoubt(() => view && draw());
  const feed = follow("queue", { queue, step: step === 60 ? 60 : "" }, (part, data) => {
    if (part === "series" && data) drawn.take(data);
    if (part === "view") {
      view = data;
      draw();
    }
  });
  return {
    title: queue,
    close: keys.stop,
    node: h("div", {}, head(queue, { trail: { text: "Queues", href: href("queues") }, beside: state, tools: actions }), h("div.stack", {}, figures, drawn.node, keys.node, h("div.columns", {}, card("Policy", policy), card("Workers", workers.node, { flush: true })))),
  };
}
