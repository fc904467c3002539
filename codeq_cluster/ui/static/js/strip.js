// Strip: two weeks of a schedule, one column a day; a mark is an instant.

import { h, svg } from "./dom.js";
import { plural, span, stamp } from "./format.js";

const WIDTH = 1000;
const HEIGHT = 92;
const TOP = 24;
const LOW = 42; // The top of what has not fired.
const BOTTOM = 84;

// What a mark is called, in the order of the legend.
const KINDS = { completed: "completed", failed: "failed", dead: "dead letter", cancelled: "cancelled", open: "running", queued: "queued", missed: "missed", skipped: "skipped: another run was open", none: "did not fire", next: "coming", paused: "if it is resumed" };

export function strip(data, zone) {
  const first = Date.parse(data.days[0]);
  const last = Date.parse(data.days.at(-1));
  const x = (instant) => (WIDTH * (Math.min(Math.max(Date.parse(instant), first), last) - first)) / (last - first);
  const now = new Date().toISOString();
  const today = data.days.findLastIndex((begins) => begins <= now);
  const changed = (n) => data.clockChanges.filter((each) => data.days[n] <= each.at && each.at < data.days[n + 1]);

  const day = (date, n) => {
    const left = x(data.days[n]);
    const width = x(data.days[n + 1]) - left;
    const of = new Date(date + "T12:00:00Z");
    const name = of.toLocaleDateString("en", { weekday: "short", timeZone: "UTC" }) + " " + of.getUTCDate();
    const changes = changed(n);
    return svg("g", {},
      svg("rect.day", { x: left, y: 0, width, height: HEIGHT, class: [n === today && "today", changes.length > 0 && "changed"].filter(Boolean).join(" ") },
        changes.length > 0 && svg("title", {}, changes.map(inWords).join(", "))),
      n > 0 && svg("line.midnight", { x1: left, x2: left, y1: 0, y2: HEIGHT }),
      svg("text", { x: left + width / 2, y: 15, "text-anchor": "middle", class: n === today ? "today" : "" }, name));
  };
  const clockChange = (each) => svg("g.change", {},
    svg("line", { x1: x(each.at), x2: x(each.at), y1: TOP - 4, y2: HEIGHT }),
    svg("title", {}, inWords(each)));
  const band = (kind, from, until, title) => Date.parse(until) > first && until > from && svg("rect", { class: "band " + kind, x: x(from), width: x(until) - x(from), y: TOP, height: BOTTOM - TOP }, svg("title", {}, title));
  const mark = ({ at, kind, late }) => {
    const top = ["next", "paused"].includes(kind) ? LOW : TOP;
    return svg("rect", { class: "mark " + kind, x: x(at) - 1.5, width: 3, y: top, height: BOTTOM - top, rx: 1 }, svg("title", {}, `${stamp(at)}: ${KINDS[kind]}${late ? ", late" : ""}`));
  };

  const picture = svg("svg", { role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-label": summary(data, zone) },
    data.dates.map(day),
    band("unknown", data.days[0], data.knownFrom < now ? data.knownFrom : now, "Of this time not every run is known"),
    data.denseFrom && band("dense", data.denseFrom, data.denseUntil, "More than can be shown one by one"),
    data.clockChanges.map(clockChange),
    data.marks.map(mark),
    svg("line.now", { x1: x(now), x2: x(now), y1: TOP - 4, y2: HEIGHT }));
  const shown = Object.keys(KINDS).filter((kind) => data.marks.some((each) => each.kind === kind));
  return [
    h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Two weeks" }, h("div.strip", {}, picture)),
    h("div.legend", {},
      shown.map((kind) => h("span", {}, h("i.dot.mark", { class: kind }), KINDS[kind])),
      data.denseFrom && h("span", {}, h("i.dot.dense"), "too many to show"),
      data.knownFrom > data.days[0] && h("span", {}, h("i.dot.unknown"), "not every run is known"),
      data.clockChanges.map((each) => h("span", {}, h("i.dot.change"), inWords(each)))),
  ];
}

function inWords({ at, seconds }) {
  return `${stamp(at)}: clocks go ${seconds > 0 ? "forward" : "back"} by ${span(Math.abs(seconds))}`;
}

function summary(data, zone) {
  const counts = Object.keys(KINDS).map((kind) => [kind, data.marks.filter((each) => each.kind === kind).length]).filter(([, number]) => number);
  const words = counts.map(([kind, number]) => `${plural(number, "instant")} ${KINDS[kind]}`);
  return [`Two weeks from ${data.dates[0]} to ${data.dates.at(-1)} in ${zone}`, ...words, ...data.clockChanges.map(inWords)].join("; ");
}
