// An address that names no view.

import { h } from "../dom.js";
import { head } from "../parts.js";
import { href } from "../router.js";

export function open() {
  return { title: "Not found", node: h("div", {}, head("Not found"), h("p", {}, "There is no such view. ", h("a", { href: href("overview") }, "Go to the overview"))) };
}
