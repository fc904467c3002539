// Requests to the node that served this page; writes carry the session's token.

export class Refused extends Error {
  constructor(status, body) {
    super([body.error || "status " + status, body.detail].filter(Boolean).join(": "));
    this.status = status;
    this.code = body.code || "";
    this.field = body.field || "";
    this.requestId = body.requestId || "";
  }
}

export class Unreachable extends Error {
  constructor() {
    super("this node does not answer");
  }
}

// A body of which one member is JSON text as somebody typed it: numbers keep every digit.
export class WithText {
  constructor(members, name, text) {
    const others = JSON.stringify(members).slice(1, -1);
    this.text = `{${others ? others + "," : ""}${JSON.stringify(name)}:${text}}`;
  }
}

const WITHIN_MS = 60000; // A node answers within limits.requestTimeoutMs, or never.

let csrf = "";
let onEnd = () => {};

export function use(token, ended) {
  csrf = token;
  onEnd = ended || onEnd;
}

// `.` and `..` would be steps in a path.
export function segment(name) {
  return name === "." || name === ".." ? "~" + name : encodeURIComponent(name);
}

export function path(...parts) {
  return "/" + parts.map(segment).join("/");
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  return given.length ? "?" + new URLSearchParams(given) : "";
}

// heard(headers) hears of an answer that is no refusal.
export async function ask(method, where, body, { signal, quiet, heard, withinMs = WITHIN_MS } = {}) {
  const limit = AbortSignal.timeout(withinMs);
  let answer, text;
  try {
    answer = await fetch("/ui/api" + where, {
      method,
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(method === "GET" ? {} : { "X-CSRF-Token": csrf }) },
      body: body === undefined ? undefined : body instanceof WithText ? body.text : JSON.stringify(body),
    });
    text = await answer.text();
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Unreachable();
  }
  let said = {};
  try {
    said = text ? JSON.parse(text) : {};
  } catch {
    said = { error: "the answer is no JSON: " + text.slice(0, 80) };
  }
  if (answer.ok) {
    if (heard) heard(answer.headers);
    return said;
  }
  if (answer.status === 401 && !quiet) onEnd();
  throw new Refused(answer.status, said);
}

export const get = (where, options) => ask("GET", where, undefined, options);
export const post = (where, body = {}, options) => ask("POST", where, body, options);
