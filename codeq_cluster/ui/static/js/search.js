// Lists that are fetched page by page, on and on while what is looked for is rare.

import { h, put } from "./dom.js";
import { count } from "./format.js";
import { get, query } from "./http.js";
import { head } from "./parts.js";

const LOOKS = 20; // Answers without a match before the search asks whether to go on.

// fetch(cursor, signal) → {rows, cursor}; the table `into` shows all there are so far, then `drawn` is
// called; `end` says what they are if there is no cursor.
export function pages({ fetch, into, drawn = () => {}, end = () => "all there are", page = 50 }) {
  const node = h("div.pager", { role: "status" });
  let rows = [];
  let cursor = "";
  let running = null;

  async function more(target) {
    if (running) return;
    const mine = new AbortController();
    running = mine;
    say("Searching…", h("button", { type: "button", onclick: stop }, "Stop"));
    try {
      for (let look = 0; look < LOOKS; look++) {
        const found = await fetch(cursor, mine.signal);
        if (running !== mine) return;
        rows = rows.concat(found.rows);
        cursor = found.cursor || "";
        draw();
        if (!cursor || rows.length >= target) break;
      }
    } catch (failure) {
      if (failure.name === "AbortError" || running !== mine) return;
      running = null;
      lack(failure.message, target);
      return;
    }
    running = null;
    rest();
  }

  function draw() {
    into.draw(rows, cursor && "None found so far.");
    drawn();
  }

  // Without the rest of the rows, or without any.
  function lack(reason, target) {
    const again = () => more(target);
    if (rows.length) say(count(rows.length) + " shown. Cannot tell whether there are more: " + reason + ".", h("button", { type: "button", onclick: again }, "Try again"));
    else {
      say();
      into.fail(reason, again);
      drawn();
    }
  }

  function rest() {
    const shown = count(rows.length) + " shown";
    if (!cursor) say(rows.length ? `${shown}, ${end()}` : "");
    else say(shown, h("button", { type: "button", onclick: () => more(rows.length + page) }, rows.length ? "Show more" : "Search on"));
  }

  function say(...parts) {
    put(node, parts);
  }

  function stop() {
    if (!running) return;
    running.abort();
    running = null;
    if (!rows.length && !cursor) lack("the search was stopped", page);
    else rest();
  }

  return {
    node,
    restart() {
      if (running) running.abort();
      running = null;
      rows = [];
      cursor = "";
      return more(page);
    },
    forget(gone) {
      rows = rows.filter((row) => !gone.has(row.id));
      draw();
      rest();
    },
    stop,
    rows: () => rows,
  };
}

// What `pages` fetches: a list of the API by its name in the answer; asked() says what narrows it.
export function listed(where, name, asked = () => ({}), limit = 50) {
  return async (cursor, signal) => {
    const found = await get(where + query({ ...asked(), cursor, limit }), { signal });
    return { rows: found[name], cursor: found.cursor };
  };
}

// A view of one such list, which begins; `above` its table stands what narrows it.
export function listView(title, { rows, list, actions, above, label = title }) {
  list.restart();
  const refresh = h("button", { type: "button", onclick: () => list.restart() }, "Refresh");
  return {
    title,
    close: list.stop,
    node: h("div", {}, head(title, { actions: [refresh, actions] }), above, h("section.card", { "aria-label": label }, rows.node), list.node),
  };
}
