// The frame around every view: navigation, search, who is logged in, how the node stands.

import { leaderless, learn } from "./doubt.js";
import { h, patch, put } from "./dom.js";
import { short, stamp } from "./format.js";
import { go, here, href } from "./router.js";
import { administers, operates, seesTenant, session } from "./state.js";
import { idIn } from "./states.js";

const THEMES = { "": "System", light: "Light", dark: "Dark" };

const anybody = () => true;
const changes = () => administers() || operates();

// Views by name, each with who is offered it; the server decides by itself.
const GROUPS = [
  ["Work", [["overview", "Overview", anybody], ["queues", "Queues", seesTenant], ["tasks", "Tasks", seesTenant], ["delayed", "Delayed", seesTenant], ["groups", "Groups", seesTenant], ["bulk", "Bulk jobs", administers], ["schedules", "Schedules", seesTenant], ["dead-letters", "Dead letters", seesTenant], ["workers", "Workers", seesTenant]]],
  ["Settings", [["topics", "Topics", seesTenant], ["limits", "Limits", seesTenant], ["webhooks", "Webhooks", seesTenant]]],
  ["Operation", [["cluster", "Cluster", operates], ["audit", "Audit", changes]]],
];

let liveness = "polling";
let serving = null;
let trouble = "";
let answeredAt = Date.now();

export function theme(name) {
  if (name === undefined) name = localStorage.getItem("codeq.theme") || "";
  else localStorage.setItem("codeq.theme", name);
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

export function drawTools(logout) {
  const tools = document.getElementById("tools");
  if (!session.subject) {
    put(tools, h("span.spring"), themeChoice());
    put(document.getElementById("nav"));
    return;
  }
  const find = h("form.find", { role: "search", onsubmit: (event) => { event.preventDefault(); open(event.target); } },
    h("input", { type: "search", id: "find", "aria-label": "Go to a task id, or its start, or a queue", placeholder: "Task id or queue  ( / )", autocomplete: "off", spellcheck: "false" }));
  put(tools,
    h("button.plain", { id: "burger", type: "button", "aria-expanded": "false", "aria-controls": "nav", "aria-label": "Views", onclick: (event) => menu(event.currentTarget) }, "☰"),
    seesTenant() && find,
    h("span.spring"),
    session.cluster && h("span.cluster-name", { title: "Cluster" }, session.cluster),
    h("span.liveness", { id: "liveness" }, h("span")),
    h("details.menu", { id: "who" },
      h("summary", {}, h("span", {}, session.subject), "▾"),
      h("div", {},
        h("dl.facts", {},
          h("dt", {}, "Subject"), h("dd", {}, session.subject),
          seesTenant() && [h("dt", {}, "Tenant"), h("dd", {}, session.tenant || "_ (default)")],
          h("dt", {}, "Roles"), h("dd", {}, session.roles.map((role) => role.replace("codeq:", "")).join(", ")),
          h("dt", {}, "Session ends"), h("dd", {}, stamp(session.endsAt)),
          h("dt", {}, "Release"), h("dd", {}, session.version)),
        h("div.stack", {}, themeChoice(), h("button", { type: "button", onclick: logout }, "Log out")))));
  drawLiveness();
  drawNav(null);
}

function themeChoice() {
  const chosen = localStorage.getItem("codeq.theme") || "";
  return h("label.dim", {}, "Colours", h("select", { onchange: (event) => theme(event.target.value) },
    Object.entries(THEMES).map(([name, text]) => h("option", { value: name, selected: name === chosen }, text))));
}

function menu(button) {
  const opened = document.getElementById("nav").classList.toggle("open");
  button.setAttribute("aria-expanded", String(opened));
}

export function closeMenus() {
  document.getElementById("nav").classList.remove("open");
  const burger = document.getElementById("burger");
  if (burger) burger.setAttribute("aria-expanded", "false");
  const who = document.getElementById("who");
  if (who) who.open = false;
}

// What has the form of an id, or of its start, is a task's; anything else is looked for among the queues.
function open(form) {
  const text = form.querySelector("input").value.trim();
  if (!text) return;
  form.reset();
  if (idIn(text)) go(href("tasks", idIn(text)));
  else go(href("queues") + "?text=" + encodeURIComponent(text));
}

export function drawNav(totals) {
  const { view } = here();
  const counts = totals ? { "dead-letters": totals.dlq, delayed: totals.delayed } : {};
  const link = ([name, text]) => h("a", { href: href(name), "data-key": name, "aria-current": name === view ? "page" : null },
    text, name in counts && counts[name] > 0 && h("span.count", { class: name === "dead-letters" ? "bad" : "" }, short(counts[name])));
  const groups = GROUPS.map(([title, views]) => [title, views.filter(([, , offered]) => offered())]);
  patch(document.getElementById("nav"), groups.filter(([, views]) => views.length).map(([title, views]) => [h("h2", { "data-key": title }, title), views.map(link)]));
}

export function drawServing(next) {
  serving = next;
  learn({ serving });
  answeredAt = Date.now();
  drawLiveness();
}

export function drawState(state) {
  liveness = state;
  learn({ liveness });
  if (state !== "lost") answeredAt = Date.now();
  drawLiveness();
}

// What could not be told just now; that something is not there is for its view to say.
export function drawTrouble(said) {
  trouble = said && said.status !== 404 ? said.error : "";
  learn({ trouble });
  drawNotice();
}

function drawLiveness() {
  const node = document.getElementById("liveness");
  if (!node) return;
  const name = (serving || session.serving || {}).node || "";
  node.dataset.state = liveness;
  node.title = { live: "Changes are shown as they happen", polling: "Asks every few seconds", lost: "No answer from this node" }[liveness];
  put(node, h("span", {}, name + { live: " · live", polling: " · polling", lost: " · no answer" }[liveness]));
  drawNotice();
}

// Says what the node cannot know or do now, and where to go instead.
function drawNotice() {
  const now = serving || session.serving;
  const box = document.getElementById("notice");
  if (!now) {
    put(box);
    return;
  }
  const others = now.nodes.filter((node) => !node.self && node.url).sort((one, other) => other.connected - one.connected);
  const links = others.length > 0 && h("span", {}, "Open ", others.map((node, n) => [n > 0 && " · ", h("a", { href: node.url + location.pathname + location.search, rel: "noreferrer", target: "_self", "data-node": node.id }, node.id)]));
  if (liveness === "lost") {
    const since = stamp(answeredAt);
    patch(box, h("div.banner.bad", {}, h("span", {}, `${now.node} does not answer: this is what was known at ${since}.`), links));
  } else if (now.leaderless.length) {
    patch(box, h("div.banner.bad", {}, h("span", {}, `${leaderless(now)}: it may be cut off from the majority. What it shows may be old, and nothing can be changed through it.`), links));
  } else if (trouble) {
    patch(box, h("div.banner.warn", {}, h("span", {}, `Part of this may be old: ${trouble}.`), links));
  } else put(box);
}
