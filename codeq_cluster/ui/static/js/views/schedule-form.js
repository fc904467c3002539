// The form of a schedule: its next instants are shown while it is typed.

import { about, ask } from "../dialog.js";
import { h, put } from "../dom.js";
import { span, stamp } from "../format.js";
import { ask as send, path, post, WithText } from "../http.js";
import { settled } from "../parts.js";
import { toast } from "../toast.js";
import { checked, field } from "./new-task.js";

export const OVERLAPS = { skip: "the instant is skipped", queueOne: "one run waits", queue: "runs wait in order", allow: "it fires all the same", cancel: "the open run is cancelled" };
const MISSED = { one: "The latest of them fires", all: "All of them fire, in order", skip: "None of them fires" };
const CALENDAR = ["cron", "zone", "every", "offset"];
const NUMBERS = ["jitterSeconds", "maxRuns", "pauseAfterFailures"];
const TASK_NUMBERS = ["priority", "maxAttempts", "ttlSeconds", "timeoutSeconds", "backoffBaseSeconds", "backoffMaxSeconds"];
const TASK_TEXTS = ["command", "backoffPolicy", "webhook"];
const INSTANTS = ["startAt", "endAt"];
const SHOWN = 5;
const WINDOW_S = 86_400;

// Asks for a schedule and puts it; returns it, or null when it was called off. Without one, for a new one.
export async function editing(schedule) {
  const known = schedule || { overlap: "skip", missed: { policy: "one", windowSeconds: WINDOW_S }, task: {}, zone: "UTC" };
  const preview = h("div.preview", { role: "status", "aria-label": "Next instants" });
  const asking = previewing(preview);
  const retell = (event) => asking.soon(event.currentTarget.form);
  const text = (name, value, attributes) => h("input", { type: "text", name, value: value || "", autocomplete: "off", spellcheck: "false", ...attributes });
  const whole = (name, value, most) => h("input", { type: "number", name, min: 0, max: most, step: 1, value: value || "" });
  const instant = (name) => h("input", { type: "datetime-local", name, step: 1, value: shown(known[name]), oninput: retell });
  const choice = (name, values, chosen) => h("select", { name }, Object.entries(values).map(([value, words]) => h("option", { value, selected: value === chosen }, words)));
  const zones = h("datalist", { id: "zones" }, Intl.supportedValuesOf("timeZone").map((value) => h("option", { value })));
  const calendar = h("fieldset", { oninput: retell },
    h("legend", {}, "When"),
    h("div.grid", {},
      field("Cron expression", text("cron", known.cron, { placeholder: "30 2 * * MON-FRI" }), "Minute, hour, day, month, weekday; with a sixth in front, seconds; or @daily"),
      field("Zone", text("zone", known.zone, { list: "zones" }), "Of its clock, such as Europe/Berlin"),
      field("Or every", text("every", known.every, { placeholder: "15m" }), "An interval such as 1h30m, whatever clocks show"),
      field("Offset", text("offset", known.offset), "How far it is behind a multiple of that")),
    preview, zones);
  const saved = ask({
    title: schedule ? `Edit ${schedule.id}` : "New schedule",
    button: schedule ? "Save" : "Create",
    body: [
      !schedule && field("Name", text("id", "", { maxlength: 128, placeholder: "nightly-report" }), "Letters, digits, dots, hyphens, colons and underscores"),
      calendar,
      h("fieldset", {}, h("legend", {}, "Task of each run"),
        h("div.grid", {},
          field("Command", text("command", known.task.command, { maxlength: 128, placeholder: "REPORT" }), "The queue it goes to"),
          field("Priority", whole("priority", known.task.priority, 9), "0 to 9; 9 is claimed first, empty is 0")),
        field("Payload, JSON", h("textarea", { name: "payload", rows: 4, spellcheck: "false", value: known.payload || "{}" }), "Sent as it stands here")),
      h("details", {}, h("summary", {}, "More"), h("div.grid", {},
        field("Not before", instant("startAt"), "Your browser's time"),
        field("Until", instant("endAt"), "Your browser's time; it does not fire then any more"),
        field("While a run is open", choice("overlap", OVERLAPS, known.overlap), "What an instant does then"),
        field("Late instants", choice("missed", MISSED, known.missed.policy), "Of more than a minute"),
        field("They fire up to, seconds late", whole("windowSeconds", String(known.missed.windowSeconds)), `Older ones are missed; ${WINDOW_S} is a day`),
        field("Jitter, seconds", whole("jitterSeconds", known.jitterSeconds, 3600), "Each instant fires up to so much later"),
        field("Runs at most", whole("maxRuns", known.maxRuns), "Empty: for ever"),
        field("Pause after failures in a row", whole("pauseAfterFailures", known.pauseAfterFailures, 1000), "Empty: never"),
        field("Attempts", whole("maxAttempts", known.task.maxAttempts), "Of each task; empty: as the queue says"),
        field("Time limit, seconds", whole("timeoutSeconds", known.task.timeoutSeconds), "Of one attempt; empty: as the queue or the worker says"),
        field("Time to live, seconds", whole("ttlSeconds", known.task.ttlSeconds), "A task dies if nobody has claimed it by then; empty: never"),
        field("Backoff", text("backoffPolicy", known.task.backoffPolicy), "Its name; empty: as the queue says"),
        field("Backoff starts at, seconds", whole("backoffBaseSeconds", known.task.backoffBaseSeconds), "Empty: as the queue says"),
        field("Backoff is at most, seconds", whole("backoffMaxSeconds", known.task.backoffMaxSeconds), "Empty: as the queue says"),
        field("Webhook", text("webhook", known.task.webhook, { placeholder: "https://…", inputmode: "url" }), "Is called with each result"),
        field("Owner", text("owner", known.owner, { maxlength: 128 }), "The set it belongs to, which its program may put again"),
        field("Note", text("note", known.note), "For people"))),
    ],
    send: async (form) => {
      const id = schedule ? schedule.id : form.elements.namedItem("id").value.trim();
      if (!id) throw about("id", "Say how it is called");
      const said = written(form, known);
      try {
        return await send("PUT", path("schedules", id), said);
      } catch (failure) {
        throw about(failure.code === "invalid-schedule-id" ? "id" : failure.field.replace(/^task\./, ""), failure.message);
      }
    },
  });
  asking.now(calendar.form);
  const stands = await saved;
  asking.stop();
  if (stands) toast(schedule ? `${stands.id} is saved, version ${stands.version}` : `${stands.id} is created`);
  return stands;
}

// Asks for the next instants of what is typed; an answer that is overtaken is dropped.
function previewing(box) {
  let running = new AbortController();

  async function now(form) {
    running.abort();
    running = new AbortController();
    const { signal } = running;
    const said = Object.fromEntries(CALENDAR.map((name) => [name, form.elements.namedItem(name).value.trim()]).filter(([, value]) => value));
    if (!said.cron && !said.every) {
      put(box, h("p.dim", {}, "The next instants are shown here."));
      return;
    }
    const [starts, ends] = INSTANTS.map((name) => Date.parse(form.elements.namedItem(name).value));
    if (starts > Date.now()) said.from = new Date(starts - 1).toISOString();
    try {
      const found = await post("/schedules/preview", { ...said, count: SHOWN }, { signal });
      const within = found.instants.filter((each) => !(Date.parse(each.at) >= ends));
      put(box, within.length ? drawn(within, said.zone || "UTC") : h("p.warn", {}, "There is no instant before its end."));
    } catch (failure) {
      if (failure.name !== "AbortError") put(box, h("p.bad", {}, failure.message));
    }
  }

  return { now, soon: settled(now), stop: () => running.abort() };
}

function drawn(instants, zone) {
  return [
    h("p.dim.small", {}, `Next in ${zone}, and here`),
    h("ol", {}, instants.map((each, n) => h("li", {},
      h("span.nowrap", {}, each.local.replace("T", " "), each.fold ? " (second time)" : ""), " ",
      h("span.dim.nowrap", {}, stamp(each.at), n > 0 && `, ${span((Date.parse(each.at) - Date.parse(instants[n - 1].at)) / 1000)} later`)))),
  ];
}

// What the form says; what is empty is left out. What the form has no field for stays.
function written(form, known) {
  const value = (name) => form.elements.namedItem(name).value.trim();
  const given = (names, make = String) => Object.fromEntries(names.filter(value).map((name) => [name, make(value(name))]));
  if (!value("command")) throw about("command", "Say which command");
  const payload = checked(form.elements.namedItem("payload").value);
  const task = { ...known.task };
  for (const name of ["payload", ...TASK_NUMBERS, ...TASK_TEXTS]) delete task[name];
  Object.assign(task, given(TASK_TEXTS), given(TASK_NUMBERS, Number));
  const said = {
    ...given([...CALENDAR, "owner", "note"]),
    ...given(NUMBERS, Number),
    overlap: value("overlap"),
    missed: { policy: value("missed"), ...given(["windowSeconds"], Number) },
  };
  // A field shows whole seconds: what nobody has changed stays as it was.
  for (const name of INSTANTS) if (value(name)) said[name] = value(name) === shown(known[name]) ? known[name] : new Date(value(name)).toISOString();
  return new WithText(said, "task", new WithText(task, "payload", payload).text);
}

// An instant as its field has it.
function shown(instant) {
  return instant ? stamp(instant).replace(" ", "T") : "";
}
