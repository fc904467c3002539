// One task: why it is where it is, what it carries, what has happened to it.

import { confirm } from "../dialog.js";
import { onDoubt, told } from "../doubt.js";
import { h, patch, put } from "../dom.js";
import { bytes, plural, span, stamp, until } from "../format.js";
import { picture } from "../graph.js";
import { get, path, post } from "../http.js";
import { copy, jsonView } from "../json.js";
import { card, head } from "../parts.js";
import { go, href } from "../router.js";
import { administers } from "../state.js";
import { at, due, instant, tag } from "../states.js";
import { failed, toast, tried } from "../toast.js";
import { backoff } from "./topic.js";
import { deleting, requeueing } from "./triage.js";

const OUTCOMES = { COMPLETED: "completed", FAILED: "failed", NACKED: "delayed", KEY_HELD: "delayed", QUEUE_HELD: "delayed", LIMIT_HELD: "delayed", LEASE_EXPIRED: "failed", ABANDONED: "", CANCELLED: "failed", REQUEUED: "in-progress" };
const WORDS = { COMPLETED: "Completed", FAILED: "Failed", NACKED: "Given back", KEY_HELD: "Given back, its key held", QUEUE_HELD: "Given back, its queue held", LIMIT_HELD: "Given back, its limit held", LEASE_EXPIRED: "Lease expired", ABANDONED: "Given back at once", CANCELLED: "Cancelled", REQUEUED: "Requeued by an operator" };
// A nack whose reason begins so is of a handler that was out of time: see docs/timeouts.md.
const TIMED_OUT = "HANDLER_TIMEOUT";
const TONES = { completed: "good", failed: "bad", "dead-letter": "bad", cancelled: "bad", "queue-paused": "warn", "no-claim": "warn", "consumer-limit": "warn", "in-flight-limit": "warn", "lease-expired": "warn", "set-aside": "warn" };

export function openTask({ follow }, id) {
  const actions = h("div.actions");
  const reason = h("div");
  const facts = h("dl.facts");
  const attempts = h("ol.timeline");
  const payload = h("div");
  const result = h("div");
  const following = h("div");
  const graph = h("div");
  const log = h("div");
  const state = h("span");
  let contentOf = "";
  let besideOf = "";
  let beside = { steps: [], signals: [] };
  let logged = 0;
  let logging = false;
  let lines = [];
  let task = null;

  async function cancel() {
    const sure = await confirm({ title: "Cancel this task?", text: "It ends as failed, and those who wait for its result are told so. A worker that holds it loses its lease. There is no undo.", button: "Cancel the task", danger: true });
    if (!sure) return;
    await tried(async () => {
      await post(path("tasks", id, "cancel"));
      toast("The task is cancelled");
      feed.refresh();
    });
  }

  const requeue = () => requeueing(task.deadQueue, { ids: [id] }, () => feed.refresh());
  const remove = () => deleting(task.deadQueue, { ids: [id] }, () => feed.refresh());

  // What a task carries is fetched once a state: it can be large, and changes with the end alone.
  async function fetchContent() {
    if (!administers()) {
      put(payload, card("Payload", h("p.empty", {}, "Payloads and results are not shown to viewers."), { flush: true }));
      return;
    }
    const name = task.state + task.updatedAt + task.resultBytes;
    if (name === contentOf) return;
    contentOf = name;
    try {
      const content = await get(path("tasks", id, "content"));
      if (name !== contentOf) return;
      drawPart(payload, "Payload", content.payload, "payload-" + id);
      drawPart(result, "Result", content.result, "result-" + id, content.artifacts);
      put(following, content.next.length > 0 && card("Made by its result", h("ul.plain-list", {}, content.next.map((each) => h("li", {}, made(each)))), { flush: true }));
    } catch (failure) {
      if (name !== contentOf) return;
      contentOf = "";
      failed(failure);
    }
  }

  // What its function has recorded stands in the time line, between the attempts.
  async function fetchBeside() {
    if (!task.beside || !administers()) return;
    const name = task.updatedAt + task.beside + (task.parkedAt || "");
    if (name === besideOf) return;
    besideOf = name;
    try {
      const recorded = await get(path("tasks", id, "steps"));
      if (name !== besideOf) return;
      beside = recorded;
      patch(attempts, timeline(task, beside));
    } catch (failure) {
      if (name !== besideOf) return;
      besideOf = "";
      failed(failure);
    }
  }

  // Only lines that came since are fetched, by one request at a time: a part that came late would end
  // the log. Those with a number up to `dropped` are gone.
  async function fetchLog() {
    if (logging || !task.logged || task.logged === logged || !administers()) return;
    const shown = logged;
    logged = task.logged;
    logging = true;
    try {
      const told = await get(`${path("tasks", id, "log")}?after=${shown}`);
      lines = [...lines.filter((each) => each.number <= shown), ...told.lines].filter((each) => each.number > told.dropped);
      drawLog(told.dropped);
    } catch (failure) {
      logged = shown;
      failed(failure);
      return;
    } finally {
      logging = false;
    }
    fetchLog();
  }

  function drawLog(dropped) {
    const attempt = (each, n) => each.attempt !== lines[n - 1]?.attempt && h("li.dim.small", {}, `Attempt ${each.attempt}`);
    patch(log, card("Log", lines.length ? h("ul.plain-list", {}, lines.map((each, n) => [attempt(each, n), h("li.break.small", {}, h("span.dim.nowrap", {}, at(each.at), " "), each.text)])) : h("p.empty", {}, "All lines are gone."), { flush: true, aside: dropped > 0 && h("span.dim.small", {}, `${plural(dropped, "earlier line")} gone`) }));
  }

  // A dead letter that others wait for holds them up until it is requeued, or deleted.
  function drawGraph(nodes) {
    const dead = nodes.filter((each) => each.blocks && each.state === "dead");
    const queue = dead[0]?.deadQueue;
    const ids = dead.filter((each) => each.deadQueue === queue).map((each) => each.id);
    patch(graph, nodes.length > 0 && card("Graph", picture(nodes, id), { aside: administers() && queue && h("button", { type: "button", onclick: () => requeueing(queue, { ids }, () => feed.refresh()) }, "Requeue and resume") }));
  }

  function drawPart(box, title, text, name, artifacts = []) {
    if (text === null && !artifacts.length) {
      put(box);
      return;
    }
    const shown = text === null ? null : jsonView(text, name);
    put(box, card(title, [
      shown && shown.node,
      artifacts.length > 0 && h("ul.plain-list", {}, artifacts.map((each) => h("li", {}, artifact(each)))),
    ], { flush: true, aside: shown && h("span.nowrap", {}, shown.tools) }));
  }

  // A key may belong to another shard, where a task may have it already: its id is not known here.
  const made = (each) => each.id ? link(each.id) : ["the task with the idempotency key ", h("code.break", {}, each.idempotencyKey)];

  // The broker's own artifacts are fetched through the page; the URLs of others are only shown.
  function artifact({ name, url }) {
    const own = new RegExp(`/v1/codeq(/tasks/${id.replace(/[^\w-]/g, "\\$&")}/artifacts/[^?#]+)$`).exec(url);
    return own ? h("a", { href: "/ui/api" + own[1], download: "" }, name) : [name, " ", h("code.break.dim", {}, url)];
  }

  function draw(look) {
    if (look.task.id !== id) { // It was named by the start of its id.
      go(href("tasks", look.task.id), { instead: true });
      return;
    }
    task = look.task;
    const why = look.explanation;
    patch(state, tag(task.state));
    patch(reason, h("p.reason", { class: TONES[why.reason] || "" }, why.message[0].toUpperCase() + why.message.slice(1) + ".", why.until && [" ", h("span.dim", { title: stamp(why.until) }, why.reason === "running" ? "Its lease ends " : "That ends ", until(why.until), ".")], task.state === "ready" && [" ", h("a", { href: href("queues", task.command.toLowerCase()) }, "Who works on it?")]));
    const fact = (term, value) => value !== undefined && value !== "" && [h("dt", {}, term), h("dd", {}, value)];
    patch(facts,
      fact("Queue", h("a", { href: href("queues", task.command.toLowerCase()) }, task.command)),
      fact("Priority", String(task.priority || 0)),
      fact("Attempts", `${task.attempts || 0} of ${task.maxAttempts}`),
      task.worker && fact("Worker", h("a", { href: href("tasks") + "?state=in-progress&worker=" + encodeURIComponent(task.worker) }, task.worker)),
      task.state === "in-progress" && fact("Lease ends", due(task.until)),
      task.state === "delayed" && fact("Ready", due(task.until)),
      task.progress && fact("Progress", [`${task.progress.done}${task.progress.total ? ` of ${task.progress.total}` : ""}${task.progress.note ? `, ${task.progress.note}` : ""} · `, at(task.progress.at)]),
      task.cancel && fact("Cancel", [`${task.cancel.reason || ""} `, task.state === "in-progress" && "by ", at(task.cancel.deadline)]),
      task.error && !why.message.includes(task.error) && fact("Error", h("span.bad", {}, task.error)),
      task.deadQueue && fact("Dead letters of", h("a", { href: href("dead-letters", task.deadQueue) }, task.deadQueue)),
      task.scheduleId && fact("Schedule", h("a", { href: href("schedules", task.scheduleId) }, task.scheduleId)),
      task.scheduledFor && fact("Scheduled for", [at(task.scheduledFor), task.late && [" ", h("span.tag.warn", {}, "late")]]),
      task.parentId && fact("Made by", link(task.parentId)),
      task.parentId && task.rootId !== task.parentId && fact("First of the chain", link(task.rootId)),
      fact("Created", instant(task.createdAt)),
      fact("Changed", instant(task.updatedAt)),
      task.parkedAt && fact("Waits at step", h("code", {}, task.parkedAt)),
      task.runAt && fact("Asked to start", due(task.runAt)),
      task.expiresAt && fact("Dies undelivered", due(task.expiresAt)),
      task.keptUntil && fact("Deleted", due(task.keptUntil)),
      task.idempotencyKey && fact("Idempotency key", h("code", {}, task.idempotencyKey)),
      task.uniqueKey && fact("Unique key", [h("code", {}, task.uniqueKey), task.revision && `, replaced ${plural(task.revision, "time")}`]),
      task.tags && fact("Tags", chips(task.tags)),
      task.metadata !== undefined && fact("Metadata", h("code.break", {}, cut(JSON.stringify(task.metadata)))),
      task.timeoutSeconds && fact("Time limit", span(task.timeoutSeconds)),
      fact("Backoff", backoff(task)),
      task.webhook && fact("Webhook", h("code", {}, task.webhook)),
      task.traceParent && fact("Trace", h("code", {}, task.traceParent)),
      fact("Size", `payload ${bytes(task.payloadBytes)}, result ${bytes(task.resultBytes)}`),
      fact("Shard", String(task.shard)));
    patch(attempts, timeline(task, beside));
    drawGraph(look.graph);
    patch(actions, h("button", { type: "button", onclick: () => copy(id, top.querySelector("h1")) }, "Copy id"), administers() && [
      task.state === "dead" && [
        h("button.danger", { type: "button", onclick: remove }, "Delete"),
        h("button.primary", { type: "button", onclick: requeue }, "Requeue"),
      ],
      ["ready", "delayed", "held", "in-progress"].includes(task.state) && h("button.danger", { type: "button", onclick: cancel }, "Cancel task"),
    ]);
    fetchContent();
    fetchBeside();
    fetchLog();
  }

  function take(part, data) {
    if (part === "view") draw(data);
    if (part === "trouble" && data && data.status === 404) {
      put(box, h("p.empty", {}, data.code === "ambiguous-id" ? several(data.error) : task ? "This task is gone: it was deleted, or its time was over." : ["No task has this id, or begins with it, of which at least 8 characters are needed. It may have been deleted when its time was over. ", h("a", { href: href("queues") + "?text=" + encodeURIComponent(id) }, "Look among the queues")]));
    }
  }

  const unknown = () => task || patch(reason, h("p.reason.warn", {}, told("…")));
  unknown();
  onDoubt(unknown);
  const feed = follow("task", { id }, take);
  const top = head(h("span.mono", {}, id), { trail: { text: "Tasks", href: href("tasks") }, beside: state, tools: actions });
  const box = h("div.stack", {}, reason, graph,
    h("div.columns", {},
      h("div.stack", {}, card("Task", facts), card("Time line", attempts, { flush: true }), log),
      h("div.stack", {}, payload, result, following)));
  return { title: "Task " + id, node: h("div", {}, top, box) };
}

// The ids that the server names, as links.
function several(text) {
  const [words, ids] = text.split(": ");
  return [words[0].toUpperCase() + words.slice(1) + ": ", ids.split(", ").map((id, n) => [n > 0 && ", ", link(id)])];
}

function link(id) {
  return h("a.mono", { href: href("tasks", id) }, id);
}

// Each leads to the tasks that have the same.
function chips(tags) {
  return h("span.chips", {}, Object.entries(tags).map(([name, value]) => h("a.chip", { href: href("tasks") + "?tag=" + encodeURIComponent(`${name}:${value}`) }, name, h("b.break", {}, value))));
}

function timeline(task, beside) {
  const history = task.history || [];
  const wrong = (text) => text && h("div.break.small.bad", {}, text);
  // A death and a requeue hold the error of the attempt before them, which may be cut: it stands once.
  const unsaid = (text, n) => !(history[n - 1]?.error && text?.startsWith(history[n - 1].error)) && wrong(text);
  const timedOut = (each) => each.outcome === "NACKED" && each.error?.startsWith(TIMED_OUT);
  const past = history.map((each, n) => [each.endedAt, h("li", { class: timedOut(each) ? "failed" : OUTCOMES[each.outcome] || "" },
    h("div", {}, h("b", {}, timedOut(each) ? "Timed out" : WORDS[each.outcome] || each.outcome), each.worker && [" · ", h("span.break", {}, each.workerName ? `${each.worker}/${each.workerName}` : each.worker)]),
    h("div.dim.small", {}, at(each.endedAt), each.outcome === "REQUEUED" ? ", dead for " : ", after ", span((Date.parse(each.endedAt) - Date.parse(each.startedAt)) / 1000)),
    each.outcome === "REQUEUED" ? unsaid(each.error, n) : wrong(each.error))]);
  const now = task.state === "in-progress" && h("li.in-progress", {}, h("div", {}, h("b", {}, "Running"), " · ", h("span.break", {}, task.worker)), h("div.dim.small", {}, "since ", at(task.since)));
  const made = h("li", {}, h("div", {}, h("b", {}, "Created")), h("div.dim.small", {}, at(task.createdAt)));
  const end = { dead: ["failed", "Became a dead letter"], failed: ["failed", "Ended as failed"], completed: ["completed", "Completed"] }[task.state];
  // The attempt that completed the task is its end already; the other ends have words of their own.
  const ended = end && history.at(-1)?.outcome !== "COMPLETED" && h("li", { class: end[0] }, h("div", {}, h("b", {}, end[1])), h("div.dim.small", {}, at(task.since)), unsaid(task.error, history.length));
  // Of the same instant, what the function has recorded comes before the end of its attempt.
  const told = [...beside.signals.map(signalled), ...beside.steps.map(stepped), ...past];
  told.sort(([one], [other]) => Date.parse(one) - Date.parse(other));
  return [made, told.map(([, node]) => node), now, ended];
}

function stepped(step) {
  const shown = (value) => value !== undefined && h("div.break.small", {}, h("code", {}, cut(JSON.stringify(value))));
  const what = !step.until ? "Step" : step.open ? "Waits" : step.signal ? "Waited" : "Slept";
  const how = step.open ? [step.signal ? `for signal ${step.signal}, until ` : "until ", due(step.until)]
    : step.until && step.signal ? [at(step.recordedAt), step.value === undefined ? ", no signal came" : `, for signal ${step.signal}`]
    : [at(step.recordedAt)];
  return [step.recordedAt, h("li", { class: step.open ? "delayed" : "completed" }, h("div", {}, h("b", {}, what), " · ", h("span.break", {}, step.name)), h("div.dim.small", {}, how), shown(step.value))];
}

function signalled(signal) {
  return [signal.sentAt, h("li", {}, h("div", {}, h("b", {}, "Signal"), " · ", h("span.break", {}, signal.name)), h("div.dim.small", {}, at(signal.sentAt), signal.read ? "" : ", not waited for yet"))];
}

const cut = (text) => text.length > 200 ? text.slice(0, 200) + "…" : text;
