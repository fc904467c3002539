// A new task: asked for in a dialog, sent as it was typed, shown when it is there.

import { about, ask } from "../dialog.js";
import { h } from "../dom.js";
import { post, WithText } from "../http.js";
import { parsed } from "../json.js";
import { go, href } from "../router.js";
import { toast } from "../toast.js";

const EXAMPLE = '{"file": "a.png"}';
// Which field a refusal of the server is about; the others are about the task as a whole.
const FIELDS = { "invalid-command": "command", "invalid-priority": "priority", "invalid-webhook-url": "webhook", "idempotency-conflict": "idempotencyKey", "body-too-large": "payload", "invalid-body": "payload" };

const NUMBERS = ["priority", "delaySeconds", "ttlSeconds", "maxAttempts", "timeoutSeconds", "backoffBaseSeconds", "backoffMaxSeconds"];

// The button that asks for one; the command is filled in where the view knows it.
export function newTaskButton({ command = "", primary = false } = {}) {
  return h("button", { type: "button", class: primary ? "primary" : "", onclick: () => newTask(command) }, "New task");
}

async function newTask(command) {
  const text = (name, attributes) => h("input", { type: "text", name, autocomplete: "off", spellcheck: "false", ...attributes });
  const whole = (name, most) => h("input", { type: "number", name, min: 0, max: most, step: 1 });
  const fields = [
    field("Command", text("command", { value: command, maxlength: 128, placeholder: "RESIZE" }), "The queue it goes to, and what a worker claims it by"),
    field("Payload, JSON", h("textarea", { name: "payload", rows: 6, spellcheck: "false", value: command ? "" : EXAMPLE, placeholder: EXAMPLE }), "Sent as it stands here; a worker gets the same text"),
    h("div.grid", {},
      field("Priority", whole("priority", 9), "0 to 9; 9 is claimed first, empty is 0"),
      field("Delay, seconds", whole("delaySeconds"), "Empty: ready at once")),
    h("details", {}, h("summary", {}, "More"), h("div.grid", {},
      field("Attempts", whole("maxAttempts"), "Empty: as the queue's policy says"),
      field("Time limit, seconds", whole("timeoutSeconds"), "Of one attempt; empty: as the queue or the worker says"),
      field("Run at", h("input", { type: "datetime-local", name: "runAt", step: 1 }), "Your browser's time; empty: ready at once"),
      field("Time to live, seconds", whole("ttlSeconds"), "Dies if nobody has claimed it by then; empty: never"),
      field("Backoff", text("backoffPolicy"), "Its name; empty: as the queue says"),
      field("Backoff starts at, seconds", whole("backoffBaseSeconds"), "Empty: as the queue says"),
      field("Backoff is at most, seconds", whole("backoffMaxSeconds"), "Empty: as the queue says"),
      field("Webhook", text("webhook", { placeholder: "https://…", inputmode: "url" }), "Is called with the result"),
      field("Idempotency key", text("idempotencyKey", { value: freshKey() }), "Sent twice, it is still one task"))),
  ];
  let replayed = false;
  const made = await ask({
    title: "New task",
    button: "Create",
    body: fields,
    send: async (form) => {
      const task = written(form);
      try {
        return await post("/tasks", task, { heard: (headers) => { replayed = headers.get("X-CodeQ-Idempotent-Replay") === "true"; } });
      } catch (failure) {
        throw placed(failure);
      }
    },
  });
  if (!made) return;
  toast(replayed ? "There was a task with this idempotency key already: this is it" : "The task is created");
  go(href("tasks", made.id));
}

export function field(label, input, hint) {
  const id = "hint-" + input.getAttribute("name");
  input.setAttribute("aria-describedby", id);
  return h("div", {}, h("label.field", {}, label, input), h("span.hint", { id }, hint));
}

// A refusal of the server with the field it is about, which its text or its code names.
function placed(failure) {
  const named = /'(\w+)'/.exec(failure.message);
  const message = failure.code === "idempotency-conflict" ? "A task with this key was created with other content: look for it, or change the key" : failure.message;
  return about(FIELDS[failure.code] || (named && named[1]), message);
}

// What the form says; what is empty is the broker's to decide.
function written(form) {
  const value = (name) => form.elements.namedItem(name).value.trim();
  if (!value("command")) throw about("command", "Say which command");
  if (!value("payload")) throw about("payload", "Say what the task carries, {} for nothing");
  const payload = checked(form.elements.namedItem("payload").value);
  const said = { command: value("command") };
  for (const name of NUMBERS) if (value(name)) said[name] = Number(value(name));
  for (const name of ["idempotencyKey", "webhook", "backoffPolicy"]) if (value(name)) said[name] = value(name);
  if (value("runAt")) said.runAt = new Date(value("runAt")).toISOString();
  return new WithText(said, "payload", payload);
}

// Returns a payload as it was typed, which is how it is sent.
export function checked(text) {
  try {
    if (parsed(text, "The payload") === null) throw new Error("A payload cannot be null");
  } catch (failure) {
    throw about("payload", failure.message);
  }
  return text.trim();
}

// One for each form that is opened: what is sent twice from it, by a double click or after an answer
// that got lost, makes one task. Not randomUUID, which browsers keep from plain HTTP.
export function freshKey() {
  return "page-" + [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
