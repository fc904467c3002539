// Tables: columns say what a row shows; a row that is drawn again is found by its key.

import { cannotTell, doubt, onDoubt } from "./doubt.js";
import { h, patch } from "./dom.js";

// columns: [{name, title?, cell(row) → text or nodes, num, less, wide, sort}], key(row) → text.
// empty: what stands there once it is known that there are no rows, or a function that makes it.
// everyNode: every node is asked for its part of the rows.
// sorted: {by, order, on(by, order)} when the server sorts; selection: a Set of keys and onselect.
export function table({ caption, columns, key, sorted, selection, onselect, empty, everyNode }) {
  const body = h("tbody");
  const all = selection && h("input", { type: "checkbox", "aria-label": "Select all shown", onchange: () => pick(rowsNow.map(key), all.checked) });
  const head = h("tr");
  let rowsNow = [];
  let otherwise = "…"; // Stands in place of `empty` while that is not known.
  let failure = null;

  function pick(keys, chosen) {
    for (const each of keys) chosen ? selection.add(each) : selection.delete(each);
    show();
    onselect();
  }

  function header(column) {
    const attributes = { scope: "col", class: classes(column), title: column.title };
    if (!column.sort || !sorted) return h("th", attributes, column.name);
    const chosen = sorted.by === column.sort;
    if (chosen) attributes["aria-sort"] = sorted.order === "desc" ? "descending" : "ascending";
    const order = chosen ? (sorted.order === "desc" ? "asc" : "desc") : column.num ? "desc" : "asc";
    return h("th", attributes, h("button", { type: "button", onclick: () => sorted.on(column.sort, order) }, column.name));
  }

  function row(each) {
    const id = key(each);
    const cells = columns.map((column, n) => h(n ? "td" : "th", { class: classes(column), scope: n ? null : "row" }, column.cell(each)));
    if (selection) {
      const box = h("input", { type: "checkbox", "aria-label": "Select " + id, onchange: (event) => pick([id], event.target.checked) });
      if (selection.has(id)) box.setAttribute("checked", "");
      cells.unshift(h("td.check", {}, box));
    }
    return h("tr", { "data-key": id, "aria-selected": selection && selection.has(id) ? "true" : null }, cells);
  }

  // soFar: what stands there without rows, where more of them may be found yet.
  function draw(rows, soFar = "") {
    rowsNow = rows;
    otherwise = soFar;
    failure = null;
    show();
  }

  // Takes that the rows cannot be told, why, and how they are asked for again.
  function fail(reason, again) {
    rowsNow = [];
    failure = { reason, again };
    show();
  }

  function nothing() {
    const reason = doubt({ everyNode }) || (failure && failure.reason);
    if (reason) return h("span.warn", {}, cannotTell(reason), failure && [" ", h("button", { type: "button", onclick: retry }, "Try again")]);
    return otherwise || (typeof empty === "function" ? empty() : empty || "Nothing here.");
  }

  function retry() {
    const { again } = failure;
    draw([], "…");
    again();
  }

  function show() {
    const rows = rowsNow;
    patch(head, selection && h("th.check", { scope: "col" }, all), columns.map(header));
    const width = columns.length + (selection ? 1 : 0);
    const across = (text) => h("tr", { "data-key": "-" }, h("td.empty", { colspan: width }, text));
    const missing = rows.length && everyNode && doubt({ everyNode });
    patch(body, rows.map(row), rows.length ? missing && across(h("span.warn", {}, `There may be more: ${missing}.`)) : across(nothing()));
    if (all) {
      const chosen = rows.filter((each) => selection.has(key(each))).length;
      all.checked = chosen > 0 && chosen === rows.length;
      all.indeterminate = chosen > 0 && chosen < rows.length;
    }
  }

  const node = h("div.scroll", { tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption.hidden", {}, caption), h("thead", {}, head), body));
  onDoubt(() => (failure && !doubt({ everyNode }) ? retry() : show()));
  show();
  return { node, draw, fail };
}

function classes(column) {
  return [column.num && "num", column.less && "less", column.wide && "wide", column.kind].filter(Boolean).join(" ");
}
