// One topic: what governs a queue, and how that is changed.

import { ask, confirm } from "../dialog.js";
import { onDoubt, told } from "../doubt.js";
import { h, patch } from "../dom.js";
import { plural, span } from "../format.js";
import { ask as send, path } from "../http.js";
import { card, head } from "../parts.js";
import { go, href } from "../router.js";
import { administers } from "../state.js";
import { instant } from "../states.js";
import { toast, tried } from "../toast.js";

const NUMBERS = [
  ["maxAttempts", "Attempts", "1 to 100; empty: as the task says", 1, 100],
  ["maxConsumers", "In progress at once", "0 to 10,000; empty or 0: as many as are claimed", 0, 10_000],
  ["weight", "Weight", "1 to 100: share of a claim of several queues", 1, 100],
  ["retentionSeconds", "Results are kept, seconds", "empty: as the broker says", 0, 2 ** 31 - 1],
  ["timeoutSeconds", "Time limit, seconds", "Of one attempt; empty: as the task or the worker says", 1, 366 * 86_400],
  ["backoffBaseSeconds", "Backoff starts at, seconds", "empty: as the broker says", 1, 366 * 86_400],
  ["backoffMaxSeconds", "Backoff is at most, seconds", "empty: as the broker says", 1, 366 * 86_400],
];
const TEXTS = ["backoffPolicy", "deadLetterTopicRef"];

export function openTopic({ follow }, name) {
  const queue = name.toLowerCase();
  const facts = h("dl.facts");
  const actions = h("div.actions");
  const note = h("p.dim");
  let topic; // null for a queue without a policy of its own.

  async function edit() {
    if (await editing(topic || { name: queue })) feed.refresh();
  }

  async function remove() {
    const sure = await confirm({
      title: `Delete the policy of ${queue}?`,
      text: "The broker's own policy governs the queue again. No task is deleted.",
      button: "Delete the policy",
      danger: true,
      typed: queue,
    });
    if (!sure) return;
    await tried(async () => {
      await send("DELETE", path("topics", queue) + "?deletionPolicy=Delete");
      toast(`${queue} has no policy of its own any more`);
      go(href("topics"));
    });
  }

  function draw() {
    const fact = (term, text, otherwise) => [h("dt", {}, term), h("dd", {}, text || h("span.dim", {}, otherwise))];
    patch(note, topic ? "" : told("This queue has no policy of its own: the broker's governs it."));
    patch(facts, topic && [
      fact("Attempts", topic.maxAttempts && plural(topic.maxAttempts, "delivery", "deliveries"), "as the task says, or the broker"),
      fact("In progress at once", topic.maxConsumers && plural(topic.maxConsumers, "task"), "as many as are claimed"),
      fact("The whole queue", perQueue(topic), "as many at once as are claimed"),
      fact("Each key", perKey(topic), "as many at once as are claimed"),
      fact("Weight", String(topic.weight)),
      fact("Priorities", topic.priorityTiers && topic.priorityTiers.join(", "), "any from 0 to 9"),
      fact("Dead letters go to", topic.deadLetterTopicRef && h("a", { href: href("dead-letters", topic.deadLetterTopicRef) }, topic.deadLetterTopicRef), "the queue's own"),
      fact("Results are kept", topic.retentionSeconds && span(topic.retentionSeconds), "as the broker says"),
      fact("Time limit", topic.timeoutSeconds && span(topic.timeoutSeconds), "as the task or the worker says"),
      fact("Backoff", backoff(topic), "as the broker says"),
      fact("Version", String(topic.version)),
      fact("Made", instant(topic.createdAt)),
      fact("Changed", instant(topic.updatedAt)),
    ]);
    patch(actions, h("a.button", { href: href("queues", queue) }, "Queue"), administers() && [
      topic && h("button.danger", { type: "button", onclick: remove }, "Delete"),
      h("button.primary", { type: "button", onclick: edit }, topic ? "Edit" : "Make a policy"),
    ]);
  }

  onDoubt(() => topic === undefined || draw());
  const feed = follow("queue", { queue }, (part, data) => {
    if (part !== "view") return;
    topic = data.topic;
    draw();
  });
  return { title: "Policy of " + queue, node: h("div", {}, head(queue, { trail: { text: "Topics", href: href("topics") }, tools: actions }), card("Policy", [note, facts])) };
}

// What a topic says of all tasks of its queue together.
export function perQueue(topic) {
  const { maxRunning, rate, limit } = topic.flow || {};
  return [
    maxRunning && `${plural(maxRunning, "task")} at once`,
    rate && claims(rate),
    limit && `shares limit ${limit} with other queues`,
    topic.draining && "tasks from before the limit count approximately",
  ].filter(Boolean).join(", ");
}

const claims = (rate) => `${rate.count} claims in ${span(rate.perSeconds)}, ${rate.burst} at once after a pause`;

// What a topic says of the tasks of one key.
export function perKey(topic) {
  if (!topic.flow || !topic.flow.perKey) return "";
  const { maxRunning, order, onRetry, whenDead, rate } = topic.flow.perKey;
  return [
    `${plural(maxRunning, "task")} at once`,
    rate && claims(rate),
    order === "fifo" && "first in, first out",
    onRetry === "yield" && "a retry lets others pass",
    whenDead === "stop" && "a dead letter stops it",
    topic.settling && "some tasks do not follow this yet",
  ].filter(Boolean).join(", ");
}

// What a task or a topic says of its backoff.
export function backoff(said) {
  return [
    said.backoffPolicy,
    said.backoffBaseSeconds && `from ${span(said.backoffBaseSeconds)}`,
    said.backoffMaxSeconds && `at most ${span(said.backoffMaxSeconds)}`,
  ].filter(Boolean).join(", ");
}

// Asks for a policy and puts it; returns the topic, or null when it was called off.
export function editing(topic) {
  const known = topic || {};
  const field = (label, input, hint) => {
    const id = "hint-" + input.name;
    input.setAttribute("aria-describedby", id);
    return h("div", {}, h("label.field", {}, label, input), h("span.hint", { id }, hint));
  };
  const text = (name, value, attributes) => h("input", { type: "text", name, value: value || "", autocomplete: "off", spellcheck: "false", ...attributes });
  return ask({
    title: topic ? `Policy of ${topic.name}` : "New policy",
    button: "Save",
    body: [
      !topic && field("Queue", text("name", "", { required: true }), "The command whose tasks it governs"),
      h("div.grid", {},
        NUMBERS.map(([name, label, hint, least, most]) => field(label, h("input", { type: "number", name, min: least, max: most, value: known[name] || "" }), hint)),
        field("Backoff", text("backoffPolicy", known.backoffPolicy), "Its name, such as exponential; empty: as the broker says"),
        field("Priorities", text("priorityTiers", (known.priorityTiers || []).join(", ")), "From 0 to 9, by commas; empty: any"),
        field("Dead letters go to", text("deadLetterTopicRef", known.deadLetterTopicRef), "Another queue; empty: the queue's own")),
    ],
    send: async (form) => {
      const name = topic ? topic.name : form.elements.namedItem("name").value.trim();
      if (!name) throw new Error("Say which queue");
      const saved = await send("PUT", path("topics", name), policy(form, known.policy));
      toast(`The policy of ${name} is saved, version ${saved.version}`);
      return saved;
    },
  });
}

// What the form says; what is empty is the broker's to decide. What it has no field for stays.
function policy(form, before = {}) {
  const said = { ...before };
  for (const name of [...NUMBERS.map(([each]) => each), "priorityTiers", ...TEXTS]) delete said[name];
  const value = (name) => form.elements.namedItem(name).value.trim();
  for (const [name] of NUMBERS) if (value(name)) said[name] = Number(value(name));
  const tiers = value("priorityTiers");
  if (tiers) {
    said.priorityTiers = tiers.split(/[\s,]+/).filter(Boolean).map(Number);
    if (!said.priorityTiers.every(Number.isInteger)) throw new Error("Priorities are whole numbers, by commas");
  }
  for (const name of TEXTS) if (value(name)) said[name] = value(name);
  return said;
}
