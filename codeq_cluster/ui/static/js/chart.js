// Charts over time: lines drawn as SVG from a ring of slots, with a cursor for mouse, finger and keys.

import { h, put, svg } from "./dom.js";
import { clock, short } from "./format.js";

const SLOTS = 180;
const HEIGHT = 190;
const EDGE = { top: 12, right: 10, bottom: 22, left: 44 };

// The slots of a view: a number or null each, by name; what comes later is added at the end.
export class Ring {
  constructor() {
    this.step = 0;
    this.last = -1;
    this.values = {};
  }

  take(series) {
    const { step, first, ...values } = series;
    if (step !== this.step || first > this.last + SLOTS) {
      this.step = step;
      this.last = first - 1;
      this.values = {};
    }
    const number = values.created.length;
    for (const [name, numbers] of Object.entries(values)) {
      const known = this.values[name] || [];
      const gap = Math.max(0, first - this.last - 1);
      const fresh = numbers.slice(Math.max(0, this.last + 1 - first));
      this.values[name] = [...known, ...Array(gap).fill(null), ...fresh].slice(-SLOTS);
    }
    this.last = Math.max(this.last, first + number - 1);
  }
}

// lines: [{name, label, kind}], scale: what a slot's number is shown as, such as a rate.
export function chart({ title, lines, scale = (number) => number, unit = "", area = true }) {
  const picture = svg("svg", { role: "img", tabindex: "0", "aria-label": title });
  const readout = h("div.readout", { hidden: true, role: "status" });
  const node = h("div.chart", {}, picture, readout);
  const legend = h("div.legend", {}, lines.map((line) => h("span", {}, h("i.dot", { class: line.kind }), line.label)));
  let ring = null;
  let width = 0;
  let cursor = null;

  new ResizeObserver(([entry]) => {
    width = Math.floor(entry.contentRect.width);
    draw();
  }).observe(node);

  const x = (slot) => EDGE.left + ((width - EDGE.left - EDGE.right) * slot) / (SLOTS - 1);
  const valueOf = (line, slot) => {
    const values = ring.values[line.name] || [];
    const found = values[slot - (SLOTS - values.length)];
    return found === undefined || found === null ? null : scale(found, ring.step);
  };

  function draw() {
    if (!ring || !width) return;
    const top = niceTop(Math.max(0, ...lines.flatMap((line) => (ring.values[line.name] || []).map((number) => scale(number || 0, ring.step)))));
    const y = (value) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * value) / top;
    const parts = [0, 0.5, 1].map((part) => [
      svg("line.grid", { x1: EDGE.left, x2: width - EDGE.right, y1: Math.round(y(top * part)) + 0.5, y2: Math.round(y(top * part)) + 0.5 }),
      svg("text", { x: EDGE.left - 7, y: y(top * part) + 4, "text-anchor": "end" }, short(top * part)),
    ]);
    for (const line of lines) parts.push(path(line, y));
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    put(picture, parts, times(), cursorParts(y));
    picture.setAttribute("aria-label", title + ". Now: " + lines.map((line) => line.label + " " + shown(valueOf(line, SLOTS - 1))).join(", "));
  }

  function path(line, y) {
    let d = "";
    let from = null;
    const areas = [];
    for (let slot = 0; slot < SLOTS; slot++) {
      const value = valueOf(line, slot);
      if (value === null) from = null;
      else {
        d += (from === null ? "M" : "L") + x(slot).toFixed(1) + " " + y(value).toFixed(1);
        if (from === null) areas.push((from = slot));
      }
    }
    if (!d) return null;
    const ground = y(0).toFixed(1);
    const filled = areas.length === 1 && area && svg("path.area", { class: line.kind, d: `${d}L${x(SLOTS - 1).toFixed(1)} ${ground}L${x(areas[0]).toFixed(1)} ${ground}Z` });
    return [filled, svg("path.line", { class: line.kind, d })];
  }

  function times() {
    const every = ring.step * SLOTS > 3600 ? 1800 : width < 420 ? 300 : 180;
    const labels = [];
    for (let slot = 0; slot < SLOTS; slot++) {
      const second = (ring.last - (SLOTS - 1) + slot) * ring.step;
      if (second % every < ring.step && x(slot) > EDGE.left + 14 && x(slot) < width - 24) {
        labels.push(svg("text", { x: x(slot), y: HEIGHT - 6, "text-anchor": "middle" }, clock(second * 1000)));
      }
    }
    return labels;
  }

  function shown(value) {
    return value === null ? "unknown" : short(Number.isInteger(value) ? value : Number(value.toFixed(2))) + unit;
  }

  function cursorParts(y) {
    readout.hidden = cursor === null;
    if (cursor === null) return null;
    const at = x(cursor);
    const second = (ring.last - (SLOTS - 1) + cursor) * ring.step;
    put(readout, h("div", {}, clock(second * 1000, true)),
      lines.map((line) => h("div", {}, h("i.dot", { class: line.kind }), line.label, h("b", {}, shown(valueOf(line, cursor))))));
    readout.style.left = at < width / 2 ? at + 12 + "px" : "auto";
    readout.style.right = at < width / 2 ? "auto" : width - at + 12 + "px";
    const marks = lines.map((line) => {
      const value = valueOf(line, cursor);
      return value === null ? null : svg("circle.mark", { class: line.kind, cx: at, cy: y(value), r: 3 });
    });
    return [svg("line.cursor", { x1: at, x2: at, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }), marks];
  }

  function point(slot) {
    cursor = slot === null ? null : Math.max(0, Math.min(SLOTS - 1, slot));
    draw();
  }

  picture.addEventListener("pointermove", (event) => {
    const left = event.clientX - picture.getBoundingClientRect().left;
    point(Math.round(((left - EDGE.left) / (width - EDGE.left - EDGE.right)) * (SLOTS - 1)));
  });
  picture.addEventListener("pointerleave", () => point(null));
  picture.addEventListener("blur", () => point(null));
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12 }[event.key];
    if (!move) return;
    event.preventDefault();
    point((cursor === null ? SLOTS - 1 : cursor) + move);
  });

  return {
    node,
    legend,
    draw(next) {
      ring = next;
      draw();
    },
  };
}

// The least of 1, 2, 5 times a power of ten, doubled for the middle line, that holds the value.
function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((each) => each * power).find((each) => each >= value);
}
