// Addresses: /ui/<view>/<what>?<filters>; moving between them does not load the page again.

import { segment } from "./http.js";

const ROOT = "/ui";

export function here() {
  const parts = location.pathname.slice(ROOT.length).split("/").filter(Boolean).map((part) => decodeURIComponent(part.replace(/^~(?=\.\.?$)/, "")));
  return { view: parts[0] || "overview", rest: parts.slice(1), query: new URLSearchParams(location.search) };
}

export function href(view, ...rest) {
  return [ROOT, ...(view === "overview" ? [] : [view]), ...rest.map(segment)].join("/");
}

// instead: the address that is left is not gone back to.
export function go(address, { instead = false } = {}) {
  if (address !== location.pathname + location.search) history[instead ? "replaceState" : "pushState"](null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
}

// Writes filters into the address, so that it can be kept and sent on.
export function keep(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  history.replaceState(null, "", location.pathname + (text ? "?" + text : ""));
}

export function onMove(call) {
  addEventListener("popstate", call);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const url = new URL(link.getAttribute("href"), location.href); // The `href` of one in a picture is no text.
    const own = url.pathname === ROOT || url.pathname.startsWith(ROOT + "/");
    if (link.getAttribute("target") || link.hasAttribute("download") || url.origin !== location.origin || !own || url.hash) return;
    event.preventDefault();
    go(url.pathname + url.search);
  });
}
