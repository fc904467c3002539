// What this page cannot know just now, and why. Every view asks here before it says that there is nothing.

import { count } from "./format.js";

const known = { liveness: "polling", serving: null, trouble: "" };
let listening = [];
let before = "";

// Takes what has become known of the node: {liveness}, {serving}, {trouble}.
export function learn(changes) {
  Object.assign(known, changes);
  const now = doubt({ everyNode: true });
  if (now === before) return;
  before = now;
  for (const call of listening) call();
}

// Calls whenever there is another doubt, or none any more, until the view is left.
export function onDoubt(call) {
  listening.push(call);
}

export function leaveDoubts() {
  listening = [];
}

// Says why an answer may lack something; nothing if it is whole. everyNode: for what each node counts
// by itself, so that one that is away leaves a gap.
export function doubt({ everyNode = false } = {}) {
  const { liveness, serving, trouble } = known;
  if (!serving) return "";
  if (liveness === "lost") return `${serving.node} does not answer`;
  if (serving.leaderless.length) return leaderless(serving);
  const away = everyNode ? serving.nodes.filter((node) => !node.connected).map((node) => node.id) : [];
  return trouble || (away.length ? `${away.join(", ")} cannot be asked` : "");
}

export function leaderless({ node, leaderless: those, shards }) {
  const which = those.length === shards ? "any shard" : `${those.length > 1 ? "shards" : "shard"} ${those.map(count).join(", ")}`;
  return `${node} knows no leader of ${which}`;
}

export const cannotTell = (reason) => `Cannot tell: ${reason}.`;

// Returns the text, or what stands in its place while there is a doubt.
export function told(text, options) {
  const reason = doubt(options);
  return reason ? cannotTell(reason) : text;
}
