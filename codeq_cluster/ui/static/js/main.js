// The page: finds out who is logged in, then shows the view that the address names.

import { leaveDoubts } from "./doubt.js";
import { h, put } from "./dom.js";
import { ask, get, use } from "./http.js";
import { Feed } from "./live.js";
import { login } from "./login.js";
import { leaveTyping } from "./parts.js";
import { here, onMove } from "./router.js";
import { closeMenus, drawNav, drawServing, drawState, drawTools, drawTrouble, theme } from "./shell.js";
import { session } from "./state.js";
import { failed, toast } from "./toast.js";

const VIEWS = ["overview", "queues", "tasks", "delayed", "groups", "bulk", "schedules", "dead-letters", "workers", "topics", "limits", "webhooks", "cluster", "audit"];
const SESSION_MS = 10000; // Then the log-in form is shown: it is answered from memory, or not at all.
const FIRST_MS = 500; // How long a view waits for its first answer before it is shown empty.
const main = document.getElementById("main");
let shown = null;

async function start() {
  theme();
  document.addEventListener("keydown", shortcut);
  let known = null;
  try {
    known = await get("/session", { withinMs: SESSION_MS });
  } catch (failure) {
    failed(failure);
  }
  if (known) begin(known);
  else {
    drawTools();
    login(main, begin);
  }
}

function begin(known) {
  Object.assign(session, known);
  use(known.csrf, ended);
  drawTools(logout);
  drawServing(known.serving);
  if (!shown) onMove(() => show());
  show();
}

// The session is over: logging in again goes on where the page was.
function ended() {
  if (!session.subject) return;
  session.subject = "";
  leave();
  drawTools();
  login(main, begin, "Your session has ended. Log in again to go on.");
}

async function logout() {
  try {
    await ask("DELETE", "/session");
  } catch (failure) {
    failed(failure);
    return;
  }
  session.subject = "";
  leave();
  drawTools();
  login(main, begin);
  toast("Logged out");
}

function leave() {
  if (shown && shown.feed) shown.feed.close();
  if (shown && shown.view && shown.view.close) shown.view.close();
  leaveDoubts();
  leaveTyping();
  shown = { feed: null, view: null };
}

async function show() {
  if (!session.subject) return;
  leave();
  closeMenus();
  const mine = shown;
  const { view, rest, query } = here();
  drawNav(null);
  try {
    const known = VIEWS.includes(view) ? view : "missing";
    const { open } = await import(`./views/${known}.js`);
    if (shown !== mine) return;
    const opened = open({ rest, query, follow: (name, params, on) => follow(mine, name, params, on) });
    mine.view = opened;
    // Shown when it has something to show, so that nothing moves once it is seen.
    if (mine.feed) await Promise.race([mine.feed.begun, new Promise((done) => setTimeout(done, FIRST_MS))]);
    if (shown !== mine) return;
    put(main, opened.node);
    document.title = opened.title + " · codeq-cluster";
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    if (!mine.feed) follow(mine, "frame", {}, () => {});
  } catch (failure) {
    if (shown !== mine) return;
    put(main, h("p.empty.bad", {}, "This view could not be opened: " + failure.message));
  }
}

// The one stream of the page: what belongs to the frame goes there, the rest to the view.
function follow(mine, name, params, on) {
  if (mine.feed) mine.feed.close();
  mine.feed = new Feed(name, params, (part, data) => {
    if (mine !== shown) return;
    if (part === "serving") drawServing(data);
    else if (part === "totals") drawNav(data);
    else if (part === "trouble" && data && data.status === 401) ended();
    else if (part === "trouble") drawTrouble(data);
    on(part, data);
  }, drawState);
  return mine.feed;
}

function shortcut(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const find = document.getElementById("find");
    if (find) {
      event.preventDefault();
      find.focus();
    }
  }
  if (event.key === "Escape") closeMenus();
}

start();
