// The log-in form.

import { h, put } from "./dom.js";
import { ask } from "./http.js";

export function login(main, begin, why = "") {
  const token = h("input", { type: "password", name: "token", id: "token", autocomplete: "current-password", spellcheck: "false", required: true });
  const error = h("p.error", { role: "alert" });
  const button = h("button.primary", {}, "Log in");

  async function send(event) {
    event.preventDefault();
    button.disabled = true;
    put(error);
    try {
      begin(await ask("POST", "/session", { token: token.value }, { quiet: true }));
    } catch (failure) {
      put(error, failure.message[0].toUpperCase() + failure.message.slice(1));
      button.disabled = false;
      token.focus();
      token.select();
    }
  }

  document.title = "Log in · codeq-cluster";
  put(main, h("div.gate", {},
    h("form", { onsubmit: send },
      h("h1", {}, "Log in"),
      h("p.dim", {}, why || "With a token of scope codeq:view, codeq:admin or codeq:operator. It stays in a sealed cookie that no script can read."),
      h("label.field", { for: "token" }, "Token", token),
      error,
      button)));
  token.focus();
}
