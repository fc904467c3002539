// JSON as it was sent: laid out and coloured from its text, so that big numbers keep every digit.

import { h } from "./dom.js";
import { bytes } from "./format.js";
import { toast } from "./toast.js";

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[[\]{},:]/g;
const COLOURED_MAX = 200_000; // Characters; each token becomes an element.

// Returns the tokens of a text with what goes before each: a line end, a space or nothing.
function laidOut(text) {
  const parts = [];
  let depth = 0;
  let before = "";
  const tokens = text.match(TOKEN) || [];
  const line = (extra = 0) => "\n" + "  ".repeat(depth + extra);
  tokens.forEach((token, n) => {
    const next = tokens[n + 1];
    if (token === "{" || token === "[") {
      parts.push([before, token]);
      const empty = next === "}" || next === "]";
      depth += 1;
      before = empty ? "" : line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const previous = tokens[n - 1];
      parts.push([previous === "{" || previous === "[" ? "" : line(), token]);
      before = "";
    } else if (token === ",") {
      parts.push(["", token]);
      before = line();
    } else if (token === ":") {
      parts.push(["", token]);
      before = " ";
    } else {
      parts.push([before, token, next === ":"]);
      before = "";
    }
  });
  return parts;
}

export function pretty(text) {
  return laidOut(text).map(([before, token]) => before + token).join("");
}

const STRING = /"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*"/y;
const SCALAR = new RegExp(STRING.source + /|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/.source, "y");
const SPACE = /[ \t\n\r]*/y;

// Returns what a text says; an error names the line and the column, which browsers say each in its way
// or not at all.
export function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch {
    const at = faultAt(text);
    const lines = text.slice(0, at).split("\n");
    const found = at < text.length ? "unexpected " + text.slice(at, at + 1) : "it ends too early";
    throw new Error(`${what} is no JSON: line ${lines.length}, column ${lines.at(-1).length + 1}: ${found}`);
  }
}

// Returns how far a text is the beginning of JSON.
function faultAt(text) {
  let at = 0;
  const eat = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found !== null;
  };
  const sign = (one) => eat(SPACE) && text[at] === one && (at += 1) > 0;
  const list = (close, each) => {
    if (sign(close)) return true;
    do if (!each()) return false; while (sign(","));
    return sign(close);
  };
  const value = () => {
    if (sign("{")) return list("}", () => eat(SPACE) && eat(STRING) && sign(":") && value());
    return sign("[") ? list("]", value) : eat(SCALAR);
  };
  if (value()) eat(SPACE);
  return at;
}

function kind(token, isKey) {
  if (isKey) return "key";
  if (token[0] === '"') return "string";
  if (/^[-\d]/.test(token)) return "number";
  return /^[tfn]/.test(token) ? "word" : "";
}

function coloured(text) {
  return laidOut(text).map(([before, token, isKey]) => {
    const name = kind(token, isKey);
    return [before, name ? h("span." + name, {}, token) : token];
  });
}

// Shows a JSON text with what can be done with it. The name is what a download is called.
export function jsonView(text, name) {
  const shown = h("pre.json", { tabindex: "0", role: "region", "aria-label": name });
  let raw = false;
  const draw = () => shown.replaceChildren(...(raw ? [text] : text.length > COLOURED_MAX ? [pretty(text)] : coloured(text).flat()));
  draw();
  const toggle = h("button.plain", { type: "button", "aria-pressed": "false", onclick: () => { raw = !raw; toggle.setAttribute("aria-pressed", String(raw)); draw(); } }, "Raw");
  return {
    node: shown,
    tools: [
      h("span.dim.small", {}, bytes(new Blob([text]).size)),
      toggle,
      h("button.plain", { type: "button", onclick: () => copy(text, shown) }, "Copy"),
      h("button.plain", { type: "button", onclick: () => download(text, name + ".json") }, "Download"),
    ],
  };
}

export async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    // Browsers give the clipboard to secure origins alone; a selection can be copied anywhere.
    getSelection().selectAllChildren(shown);
    toast("Selected: copy it with the keyboard");
  }
}

export function download(text, name) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
