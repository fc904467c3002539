// One schedule: when it fires, what has become of its runs, and what can be done with it.

import { about, ask, confirm } from "../dialog.js";
import { onDoubt, told } from "../doubt.js";
import { h, patch, put } from "../dom.js";
import { count, plural, short, span, stamp } from "../format.js";
import { ask as send, path, post } from "../http.js";
import { jsonView } from "../json.js";
import { card, figure, head } from "../parts.js";
import { go, href } from "../router.js";
import { administers } from "../state.js";
import { at, due, instant } from "../states.js";
import { strip } from "../strip.js";
import { table } from "../table.js";
import { toast, tried } from "../toast.js";
import { freshKey } from "./new-task.js";
import { editing, OVERLAPS } from "./schedule-form.js";
import { backoff } from "./topic.js";

export const STATES = { active: "Active", paused: "Paused", over: "Over" };
const TONES = { active: "good", paused: "warn", over: "" };
// Of a run: a tag's words and colours.
const RUNS = { COMPLETED: ["Completed", "completed"], FAILED: ["Failed", "failed"], DEAD: ["Dead letter", "dead"], CANCELLED: ["Cancelled", ""], OPEN: ["Running", "in-progress"], QUEUED: ["Queued", "delayed"] };
const LATE_MS = 60_000;
const ID_CHARS = 8; // As many as find a task.
const PAUSERS = { failures: "after failures in a row", restore: "by a restore", import: "by an import" };
const MISSED = { one: "the latest fires", all: "all fire, in order", skip: "none fires" };
const TRIGGERED = { created: "The run is created", queued: "The run waits for the one that is open", skipped: "Nothing was created: a run is open" };

export function scheduleTag(state) {
  return h("span.tag", { class: TONES[state] }, STATES[state]);
}

export function runTag(run) {
  const [text, kind] = RUNS[run.status] || [run.status, ""];
  return h("span.tag", { class: kind }, text);
}

// How long after its instant a run was made.
export function lag(run) {
  if (run.lagMs === undefined) return h("span.zero", {}, "–");
  return h("span", { class: run.late || run.lagMs >= LATE_MS ? "warn" : run.lagMs < 1000 ? "zero" : "" }, run.lagMs < 10 ? "0 s" : span(run.lagMs / 1000), run.late && h("span.hidden", {}, ", late"));
}

export function openSchedule({ follow }, id) {
  const actions = h("div.actions");
  const state = h("span");
  const figures = h("div.figures", { "aria-label": "Totals" });
  const weeks = h("div.stack");
  const facts = h("dl.facts");
  const template = h("dl.facts");
  const payload = h("div");
  const unless = h("span.dim.small");
  let shownPayload = null;
  let schedule = null;
  let centred = false;

  const runs = table({
    caption: "Last runs",
    empty: "It has not fired yet.",
    key: (row) => row.at + row.taskId,
    columns: [
      { name: "Instant", cell: (row) => at(row.at) },
      { name: "State", cell: runTag },
      { name: "Lag", num: true, title: "How long after its instant it was made", cell: lag },
      { name: "Took", num: true, less: true, title: "From its creation to its end", cell: (row) => (row.endedAt && row.madeAt ? span((Date.parse(row.endedAt) - Date.parse(row.madeAt)) / 1000) : h("span.zero", {}, "–")) },
      { name: "Task", cell: (row) => (row.taskId ? h("a.mono.nowrap", { href: href("tasks", row.taskId), title: row.taskId }, row.taskId.slice(0, ID_CHARS) + "…") : h("span.zero", {}, "–")) },
    ],
  });
  const coming = table({
    caption: "Next instants",
    empty: "There are none: it is over.",
    key: (row) => row.at,
    columns: [
      { name: "In its zone", cell: (row) => [h("span.nowrap", {}, row.local.replace("T", " ")), row.fold ? h("span.dim", {}, ", the second time") : ""] },
      { name: "Here", cell: (row) => at(row.at) },
      { name: "", less: true, cell: (row) => h("span.nowrap.dim", {}, due(row.at)) },
    ],
  });

  async function change(verb, body, done) {
    await tried(async () => {
      await post(path("schedules", id, verb), body);
      toast(done);
      feed.refresh();
    });
  }

  async function pause() {
    if (await confirm({ title: `Pause ${id}?`, text: "It does not fire until it is resumed. Its open runs go on.", button: "Pause" })) change("pause", {}, `${id} is paused`);
  }

  async function resume() {
    const box = h("input", { type: "checkbox", name: "catchUp" });
    const sure = await ask({
      title: `Resume ${id}?`,
      button: "Resume",
      body: [
        h("label", {}, box, "Catch up"),
        h("p.hint", {}, `With it, instants of the pause count as late: of those that are at most ${span(schedule.missed.windowSeconds)} old, ${MISSED[schedule.missed.policy]}. Otherwise they count for nothing.`),
      ],
      send: async () => true,
    });
    if (sure) change("resume", { catchUp: box.checked }, `${id} is resumed`);
  }

  async function trigger() {
    const idempotencyKey = freshKey();
    const overlap = overlapChoice([["", `As the schedule says: ${OVERLAPS[schedule.overlap]}`], ...Object.entries(OVERLAPS)]);
    const answer = await ask({
      title: `Run ${id} now?`,
      button: "Run now",
      body: [h("p", {}, "A task is created at once, whatever the calendar says."), overlap.node],
      send: () => post(path("schedules", id, "trigger"), { idempotencyKey, ...(overlap.value() && { overlap: overlap.value() }) }),
    });
    if (!answer) return;
    toast(TRIGGERED[answer.outcome], answer.taskId ? { label: "Show the task", action: () => go(href("tasks", answer.taskId)) } : {});
    feed.refresh();
  }

  // First a dry run, then the question whether to go on with so many.
  async function backfill() {
    const field = (name, label) => h("label.field", {}, label, h("input", { type: "datetime-local", name, step: 1, required: true }));
    const overlap = overlapChoice(Object.entries(OVERLAPS), "queue");
    const force = h("input", { type: "checkbox", name: "force" });
    const looked = await ask({
      title: `Backfill ${id}`,
      button: "Dry run",
      body: [
        h("p", {}, "Instants of a time that has passed fire now. The dry run says which; nothing is created yet."),
        h("div.grid", {}, field("from", "From"), field("to", "To")),
        h("p.hint", {}, "Your browser's time."),
        overlap.node,
        h("label", {}, force, "Also those whose task is still kept"),
      ],
      send: async (form) => {
        const body = { from: typed(form, "from"), to: typed(form, "to"), overlap: overlap.value(), force: force.checked };
        const found = await post(path("schedules", id, "backfill"), { ...body, dryRun: true });
        if (!found.count) throw about("from", "No instant is in this time");
        return { body, found };
      },
    });
    if (!looked) return;
    const { body, found } = looked;
    const idempotencyKey = freshKey();
    const started = await ask({
      title: `Backfill ${plural(found.count, "instant")} of ${id}?`,
      button: `Fire ${plural(found.count, "instant")}`,
      body: [
        h("ul.plain-list.sample", {}, found.instants.map((each) => h("li", {}, each.local.replace("T", " "))), found.count > found.instants.length && h("li.dim", {}, `and ${count(found.count - found.instants.length)} more`)),
        h("p.hint", {}, `In ${schedule.zone}.`, !body.force && " Those whose task is still kept do not fire again."),
      ],
      send: () => post(path("schedules", id, "backfill"), { ...body, idempotencyKey }),
    });
    if (!started) return;
    toast(`The backfill of ${id} has begun`);
    feed.refresh();
  }

  async function remove() {
    const sure = await confirm({ title: `Delete ${id}?`, text: "It does not fire any more, and queued runs are gone. Open runs go on. There is no undo.", button: "Delete the schedule", danger: true, typed: id });
    if (!sure) return;
    await tried(async () => {
      await send("DELETE", path("schedules", id));
      toast(`${id} is deleted`);
      go(href("schedules"));
    });
  }

  async function edit() {
    if (await editing(schedule)) feed.refresh();
  }

  function draw() {
    const { last, missed, task } = schedule;
    patch(state, scheduleTag(schedule.state));
    patch(figures, [
      figure({ name: "Next", value: schedule.state === "active" && schedule.next.length ? due(schedule.next[0].at) : "–", note: schedule.state === "active" ? "" : STATES[schedule.state].toLowerCase() }),
      figure({ name: "Last run", value: last ? instant(last.at) : "–", note: last && runTag(last) }),
      figure({ name: "Lag", value: last ? lag(last) : "–", note: "of the last run" }),
      figure({ name: "Missed", kind: missed.count ? "failed" : "", value: h("span", { class: missed.count ? "bad" : "" }, short(missed.count)), note: "late or refused" }),
      figure({ name: "Running", kind: "in-progress", value: short(schedule.running) }),
      figure({ name: "Queued", kind: "delayed", value: short(schedule.queued) }),
    ]);
    patch(weeks, strip(schedule.strip, schedule.zone));
    if (!centred) centre();
    const fact = (term, value) => value !== undefined && value !== "" && value !== false && [h("dt", {}, term), h("dd", {}, value)];
    patch(facts,
      schedule.pausedAt && fact("Paused", [PAUSERS[schedule.pausedBy] || `by ${schedule.pausedBy || "somebody"}`, ", ", instant(schedule.pausedAt)]),
      fact("Fires", schedule.words),
      schedule.cron && fact("Expression", h("code", {}, schedule.cron)),
      fact("Zone", [schedule.zone, " ", h("span.dim.small", {}, `rules of ${schedule.zoneRules}`)]),
      fact("While a run is open", OVERLAPS[schedule.overlap]),
      fact("Late instants", missed.policy === "skip" ? "do not fire" : [`up to ${span(missed.windowSeconds)} old, `, MISSED[missed.policy]]),
      schedule.jitterSeconds && fact("Jitter", `up to ${span(schedule.jitterSeconds)}`),
      schedule.startAt && fact("Not before", at(schedule.startAt)),
      schedule.endAt && fact("Until", at(schedule.endAt)),
      schedule.skipped > 0 && fact("Skipped", plural(schedule.skipped, "time") + ", because a run was open"),
      fact("Fired", plural(schedule.made, "time") + (schedule.maxRuns ? ` of ${count(schedule.maxRuns)}` : "")),
      schedule.pauseAfterFailures && fact("Pauses after", plural(schedule.pauseAfterFailures, "failed run") + " in a row"),
      schedule.owner && fact("Owner", h("a", { href: href("schedules") + "?owner=" + encodeURIComponent(schedule.owner) }, schedule.owner)),
      schedule.note && fact("Note", schedule.note),
      schedule.backfill && fact("Backfill", `${plural(schedule.backfill.made, "run")} so far, until ${stamp(schedule.backfill.doneUntil)} of ${stamp(schedule.backfill.to)}`),
      fact("Version", String(schedule.version)),
      fact("Created", instant(schedule.createdAt)),
      fact("Changed", instant(schedule.updatedAt)));
    patch(template,
      fact("Queue", h("a", { href: href("queues", task.command.toLowerCase()) }, task.command)),
      fact("Priority", String(task.priority || 0)),
      task.key && fact("Key", [h("code", {}, task.key), task.cost && `, ${plural(task.cost, "token")}`]),
      task.maxAttempts && fact("Attempts", String(task.maxAttempts)),
      task.ttlSeconds && fact("Time to live", span(task.ttlSeconds)),
      task.timeoutSeconds && fact("Time limit", span(task.timeoutSeconds)),
      fact("Backoff", backoff(task)),
      task.webhook && fact("Webhook", h("code", {}, task.webhook)));
    drawPayload();
    runs.draw(schedule.lastRuns);
    patch(unless, schedule.state === "paused" && "if it is resumed");
    coming.draw(schedule.state === "over" ? [] : schedule.next);
    patch(actions, administers() && [
      h("button", { type: "button", onclick: trigger }, "Run now"),
      schedule.state === "paused"
        ? h("button", { type: "button", onclick: resume }, "Resume")
        : h("button", { type: "button", onclick: pause }, "Pause"),
      h("button", { type: "button", disabled: Boolean(schedule.backfill), onclick: backfill }, "Backfill"),
      h("button.danger", { type: "button", onclick: remove }, "Delete"),
      h("button.primary", { type: "button", onclick: edit }, "Edit"),
    ]);
  }

  // A narrow window begins with today, which is in the middle.
  function centre() {
    centred = true;
    new ResizeObserver((_, observer) => {
      const region = weeks.querySelector(".scroll");
      region.scrollLeft = (region.scrollWidth - region.clientWidth) / 2;
      observer.disconnect();
    }).observe(weeks);
  }

  function drawPayload() {
    if (schedule.payload === shownPayload) return;
    shownPayload = schedule.payload;
    if (shownPayload === undefined) {
      put(payload, card("Payload", h("p.empty", {}, "Payloads are not shown to viewers."), { flush: true }));
      return;
    }
    const shown = jsonView(shownPayload, "payload-" + id);
    put(payload, card("Payload", shown.node, { flush: true, aside: h("span.nowrap", {}, shown.tools) }));
  }

  function take(part, data) {
    if (part === "view") {
      schedule = data;
      draw();
    }
    if (part === "trouble" && data && data.status === 404) put(box, h("p.empty", {}, schedule ? "This schedule is gone: it was deleted." : "There is no schedule of this name."));
  }

  const unknown = () => schedule || patch(facts, h("dt", {}, told("…")));
  unknown();
  onDoubt(unknown);
  const feed = follow("schedule", { id }, take);
  const box = h("div.stack", {}, figures, card("Two weeks", weeks),
    h("div.columns", {},
      h("div.stack", {}, card("Last runs", runs.node, { flush: true }), card("Next instants", coming.node, { flush: true, aside: unless })),
      h("div.stack", {}, card("Schedule", facts), card("Task of each run", template), payload)));
  return { title: "Schedule " + id, node: h("div", {}, head(id, { trail: { text: "Schedules", href: href("schedules") }, beside: state, tools: actions }), box) };
}

function overlapChoice(values, chosen = "") {
  const select = h("select", { name: "overlap" }, values.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  return { node: h("label.field", {}, "While another run is open", select), value: () => select.value };
}

function typed(form, name) {
  return new Date(form.elements.namedItem(name).value).toISOString();
}
