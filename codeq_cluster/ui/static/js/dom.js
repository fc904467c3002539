// Elements. Everything shown goes in as text or as a node: nothing that a task holds can become markup.

const SVG = "http://www.w3.org/2000/svg";
// By element, its listeners by the event's type. An element that is kept takes over those of the one
// drawn in its place: they know the newest data.
const LISTENERS = new WeakMap();
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate"]);

// h("td.num", {title: "…"}, "text", node): classes after the tag, listeners as onclick and so on.
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  return filled(document.createElement(tag), classes, attributes, children);
}

export function svg(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  return filled(document.createElementNS(SVG, tag), classes, attributes, children);
}

function filled(node, classes, attributes, children) {
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) listen(node, key.slice(2), value);
    else if (PROPERTIES.has(key)) node[key] = value;
    else if (key === "class") node.classList.add(...value.split(" ").filter(Boolean));
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  put(node, ...children);
  return node;
}

function listen(node, type, call) {
  const own = LISTENERS.get(node) || {};
  own[type] = call;
  LISTENERS.set(node, own);
  node.addEventListener(type, (event) => LISTENERS.get(node)[type]?.(event));
}

// Gives a tree the listeners of an equal one.
function takeOver(old, wanted) {
  takeOverOwn(old, wanted);
  [...old.children].forEach((each, n) => takeOver(each, wanted.children[n]));
}

function takeOverOwn(old, wanted) {
  const own = LISTENERS.get(old) || {};
  const newest = LISTENERS.get(wanted) || {};
  for (const type of Object.keys(own)) own[type] = newest[type];
  for (const type of Object.keys(newest)) if (!(type in own)) listen(old, type, newest[type]);
}

// Replaces what a node holds; nothing for null, false and "".
export function put(node, ...children) {
  node.replaceChildren(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false && each !== ""));
  return node;
}

// Changes what a node holds only where it differs: focus, selection and scrolling stay where they are.
// Children with a data-key are found again by it, wherever they stand; the others by their position.
export function patch(node, ...children) {
  const focused = document.activeElement;
  patchInto(node, put(node.cloneNode(false), ...children));
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  return node;
}

function patchInto(old, wanted) {
  const keyed = new Map([...old.children].filter((each) => each.dataset.key).map((each) => [each.dataset.key, each]));
  let at = old.firstChild;
  for (const node of [...wanted.childNodes]) {
    const key = node.dataset && node.dataset.key;
    let known = key ? keyed.get(key) : at && at.dataset && at.dataset.key ? null : at;
    if (known && key) {
      keyed.delete(key);
      if (known !== at) old.insertBefore(known, at);
      else at = at.nextSibling;
    } else if (known) {
      at = at.nextSibling;
    }
    if (!known) old.insertBefore(node, at);
    else if (known.isEqualNode(node)) {
      if (known.nodeType === 1) takeOver(known, node);
    } else if (keeps(known, node)) {
      takeOverOwn(known, node);
      patchInto(known, node);
    } else known.replaceWith(node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// Two elements that differ in what is in them alone. Controls and pictures are replaced whole: a value
// that was typed or a point that is shown is no attribute.
function keeps(old, node) {
  return old.nodeType === 1 && node.nodeType === 1 && !/^(button|input|select|textarea|svg)$/i.test(old.tagName) && old.cloneNode().isEqualNode(node.cloneNode());
}
