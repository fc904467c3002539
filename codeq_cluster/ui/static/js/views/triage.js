// What is asked before dead letters are requeued or deleted: which, how many, with what changed.

import { AT_ONCE, held, inParts, undoable } from "../bulk.js";
import { about, ask } from "../dialog.js";
import { h, put } from "../dom.js";
import { count, plural } from "../format.js";
import { path, post, WithText } from "../http.js";
import { parsed, pretty } from "../json.js";
import { settled } from "../parts.js";
import { toast, tried } from "../toast.js";
import { checked } from "./new-task.js";

const WAIT_MS = 300;

// A selection as what single requests name: ids go in parts.
function named(what) {
  if (!what.ids) return [what];
  const parts = [];
  for (let from = 0; from < what.ids.length; from += AT_ONCE) parts.push({ ...what, ids: what.ids.slice(from, from + AT_ONCE) });
  return parts;
}

// change is {name, text}: a patch of every payload, or the payload of the one that is named.
function body(what, change) {
  return change ? new WithText(what, change.name, change.text) : what;
}

async function preview(queue, what, change) {
  const found = { matched: 0, more: false, kinds: [], until: "", before: null, after: null };
  const kinds = new Map();
  for (const part of named(what)) {
    const one = await post(path("queues", queue, "dlq", "preview"), body(part, change));
    found.matched += one.matched;
    found.more ||= one.more;
    if (one.until > found.until) found.until = one.until;
    found.before ??= one.before;
    found.after ??= one.after;
    for (const each of one.kinds) kinds.set(each.kind, (kinds.get(each.kind) || 0) + each.count);
  }
  found.kinds = [...kinds].map(([kind, number]) => ({ kind, count: number })).sort((one, other) => other.count - one.count);
  return found;
}

// Returns what is meant, with its preview; null if there is none. Those that die later are not meant:
// nobody has been asked about them.
async function counted(queue, what, after) {
  const found = await tried(() => preview(queue, what));
  if (!found) return null;
  if (found.matched) return { found, meant: { ...what, until: found.until } };
  toast("There are none any more");
  after();
  return null;
}

// Sends one request after the other until nothing is left of what is meant.
function carryOut(queue, verb, what, found, doing, change) {
  const parts = named(what);
  return inParts({
    doing,
    expected: found.more ? Infinity : found.matched,
    step: async () => {
      const part = what.ids ? parts.shift() : what;
      const done = await post(path("queues", queue, "dlq", verb), body(part, change));
      return what.ids ? { ...done, more: parts.length > 0 } : done;
    },
  });
}

function list(found) {
  return h("ul.plain-list.sample", { tabindex: "0", "aria-label": "Kinds of errors" }, found.kinds.map((each) => h("li", {}, h("b", {}, count(each.count)), " × ", h("span.break", {}, each.kind))));
}

function howMany(found) {
  return (found.more ? "at least " : "") + plural(found.matched, "dead letter");
}

// what is {ids}, {kind} or {all: true}.
export async function requeueing(queue, what, after) {
  const asked = await counted(queue, what, after);
  if (!asked) return;
  const { found, meant } = asked;
  const changing = what.ids && what.ids.length === 1 && found.before !== null ? payloadEdit(found.before) : patchEdit(queue, meant);
  const undo = h("p");
  const drawUndo = () => put(undo, changing.given() ? h("b", {}, "There is no undo: payloads that are changed cannot be changed back.") : "For two minutes it can be undone for those that nobody has claimed.");
  drawUndo();
  const sent = await ask({
    title: `Requeue ${howMany(found)}?`,
    button: "Requeue " + (found.more ? "them" : count(found.matched)),
    body: [h("p", {}, "Their attempts are counted from zero again; their errors stay in their history."), undo, list(found), h("div", { oninput: drawUndo }, changing.node)],
    send: async () => ({ change: changing.read() }),
  });
  if (sent === null) return;
  const { parts, changed, leftAlone } = await carryOut(queue, "requeue", meant, found, "Requeueing", sent.change);
  const text = `${plural(changed, "dead letter")} requeued` + (leftAlone ? `, ${count(leftAlone)} left alone: their payloads are no objects, or would be too large` : "");
  undoable(text, parts, (action, ids) => post(path("queues", queue, "dlq", "undo"), { action, ids }), after);
  after();
}

export async function deleting(queue, what, after) {
  const asked = await counted(queue, what, after);
  if (!asked) return;
  const { found, meant } = asked;
  const typed = what.all && h("input", { type: "text", autocomplete: "off", spellcheck: "false", name: "typed" });
  const sure = await ask({
    title: `Delete ${howMany(found)}?`,
    button: "Delete " + (found.more ? "them" : count(found.matched)),
    danger: true,
    body: [
      h("p", {}, "They are gone for good, with their payloads and their history. For ten seconds it can be called off; after that there is no undo."),
      list(found),
      typed && h("label.field", {}, h("span", {}, "Type ", h("code", {}, queue), " to go on"), typed),
    ],
    send: async () => {
      if (typed && typed.value.trim() !== queue) throw new Error(`Type ${queue} to go on`);
      return true;
    },
  });
  if (!sure) return;
  held(`Deleting ${howMany(found)} of ${queue}`, async () => {
    const { changed } = await carryOut(queue, "delete", meant, found, "Deleting");
    toast(`${plural(changed, "dead letter")} deleted`);
    after();
  });
}

// Changes the payloads of many; shows what becomes of the first while it is typed.
function patchEdit(queue, what) {
  const patch = h("textarea", { spellcheck: "false", placeholder: '{"retry": true, "obsolete": null}', name: "patch" });
  const shown = h("div");
  const given = () => patch.value.trim() !== "";
  // Returns the patch as it was typed, which is how it is sent.
  const written = () => (given() ? { name: "patch", text: object(patch.value) } : null);
  const read = () => {
    put(shown); // What is wrong is said once: beside the field.
    return written();
  };
  patch.addEventListener("input", settled(async () => {
    try {
      const change = written();
      const tried = change && await preview(queue, what, change);
      put(shown, tried && (tried.after === null
        ? h("p.bad", {}, "The first payload is no object, or would be too large: it would be left alone.")
        : h("figure", {}, h("figcaption.dim.small", {}, "The first payload as it would be"), h("pre.json.sample", { tabindex: "0", role: "region", "aria-label": "The first payload as it would be" }, pretty(tried.after)))));
    } catch (failure) {
      put(shown, h("p.bad", {}, failure.message));
    }
  }, WAIT_MS));
  const node = h("details", {}, h("summary", {}, "Change their payloads"),
    h("p.dim.small", {}, "A JSON merge patch: members replace those of each payload, null takes one away."),
    h("label.field", {}, "Merge patch", patch), shown);
  return { node, read, given };
}

// Changes the payload of one, as a whole.
function payloadEdit(before) {
  const text = pretty(before);
  const payload = h("textarea", { spellcheck: "false", rows: 10, name: "payload" });
  payload.value = text;
  const node = h("details", {}, h("summary", {}, "Change its payload"),
    h("p.dim.small", {}, "The task keeps its id."), h("label.field", {}, "New payload", payload));
  const given = () => payload.value.trim() !== text;
  const read = () => (given() ? { name: "payload", text: checked(payload.value) } : null);
  return { node, read, given };
}

function object(text) {
  try {
    const value = parsed(text, "The patch");
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("The patch is no JSON object");
  } catch (failure) {
    throw about("patch", failure.message);
  }
  return text.trim();
}
