// Graph: tasks from left to right, each one right of all that it waits for.

import { h, svg } from "./dom.js";
import { plural } from "./format.js";
import { href } from "./router.js";
import { STATES } from "./states.js";

const WIDTH = 168;
const HEIGHT = 34;
const ACROSS = 54; // Between columns.
const DOWN = 10;
const CHARS = 18; // Of a name in its box.

export function picture(nodes, id) {
  const known = new Map(nodes.map((each) => [each.id, each]));
  const columns = inColumns(nodes, known);
  const spots = new Map();
  columns.forEach((column, x) => column.forEach((each, y) => spots.set(each.id, { x: x * (WIDTH + ACROSS) + 1, y: y * (HEIGHT + DOWN) + 1 })));
  const width = columns.length * (WIDTH + ACROSS) - ACROSS + 2;
  const height = Math.max(...columns.map((each) => each.length)) * (HEIGHT + DOWN) - DOWN + 2;

  const edge = (from, to, verdict) => {
    const [left, right] = [from.x + WIDTH, to.x];
    const [top, bottom] = [from.y + HEIGHT / 2, to.y + HEIGHT / 2];
    const middle = (left + right) / 2;
    return svg("path.edge", { class: verdict, d: `M${left} ${top} C${middle} ${top} ${middle} ${bottom} ${right} ${bottom}` });
  };
  const node = (each) => {
    const { x, y } = spots.get(each.id);
    const name = nameOf(each);
    const words = inWords(each);
    const box = [
      svg("title", {}, `${name}: ${words}`),
      svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6 }),
      svg("circle", { class: each.state, cx: x + 13, cy: y + HEIGHT / 2, r: 4.5 }),
      svg("text", { x: x + 25, y: y + HEIGHT / 2 + 4 }, name.length > CHARS ? name.slice(0, CHARS - 1) + "…" : name),
    ];
    const kinds = [each.blocks && "blocks", each.id === id && "here"].filter(Boolean).join(" ");
    return each.state === "deleted" ? svg("g.node", { class: kinds }, box)
      : svg("a.node", { class: kinds, href: href("tasks", each.id), "aria-label": `${name}: ${words}` }, box);
  };

  const drawn = svg("svg", { role: "group", width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": summary(nodes) },
    nodes.flatMap((each) => each.waitsFor.filter((of) => known.has(of.id)).map((of) => edge(spots.get(of.id), spots.get(each.id), of.verdict))),
    nodes.map(node));
  return [
    h("p.small", {}, summary(nodes)),
    h("div.scroll.graph", { tabindex: "0", role: "region", "aria-label": "Graph" }, drawn),
  ];
}

// A task stands one column right of the last one that it waits for, beside those that it waits for.
// Edges never lead in a circle.
function inColumns(nodes, known) {
  const depths = new Map();
  const depth = (each) => {
    if (!depths.has(each.id)) {
      depths.set(each.id, 0);
      depths.set(each.id, Math.max(0, ...each.waitsFor.filter((of) => known.has(of.id)).map((of) => 1 + depth(known.get(of.id)))));
    }
    return depths.get(each.id);
  };
  const columns = [];
  for (const each of nodes) (columns[depth(each)] ||= []).push(each);
  const places = new Map();
  for (const column of columns) {
    const beside = (each) => {
      const of = each.waitsFor.filter(({ id }) => places.has(id)).map(({ id }) => places.get(id));
      return of.reduce((sum, place) => sum + place, 0) / (of.length || 1);
    };
    const sorted = new Map(column.map((each) => [each, beside(each)]));
    column.sort((one, other) => sorted.get(one) - sorted.get(other) || nameOf(one).localeCompare(nameOf(other), "en", { numeric: true }));
    column.forEach((each, place) => places.set(each.id, place));
  }
  return columns;
}

function nameOf(each) {
  return each.name || each.command || each.id;
}

function inWords(each) {
  const state = each.state === "deleted" ? "deleted" : STATES[each.state].toLowerCase();
  return each.blocks ? `${state}, others wait for it` : state;
}

function summary(nodes) {
  const counts = new Map();
  for (const each of nodes) counts.set(each.state, (counts.get(each.state) || 0) + 1);
  const states = [...counts].map(([state, n]) => `${n} ${(STATES[state] || "deleted").toLowerCase()}`);
  const blocking = nodes.filter((each) => each.blocks).map(nameOf);
  const shown = blocking.slice(0, 5).join(", ") + (blocking.length > 5 ? ` and ${blocking.length - 5} more` : "");
  return `${plural(nodes.length, "task")}: ${states.join(", ")}.` + (blocking.length ? ` The others wait for ${shown}.` : "");
}
