// Cluster: nodes and shards, who leads what, and backups.

import { ask, confirm } from "../dialog.js";
import { h, patch } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { post } from "../http.js";
import { card, choice, figure, head } from "../parts.js";
import { href } from "../router.js";
import { instant } from "../states.js";
import { table } from "../table.js";
import { failed, toast } from "../toast.js";
import { backups } from "./backups.js";

const DISK_LOW = 0.1; // Of the whole disk.
const LAG_HIGH = 1000; // Entries.

export function open({ follow }) {
  const figures = h("div.figures", { "aria-label": "Totals" });
  const actions = h("div.actions");
  const kept = backups();
  let view = null;

  const nodes = table({
    caption: "Nodes",
    key: (row) => row.id,
    columns: [
      { name: "Node", kind: "nowrap", cell: (row) => [row.self || !row.httpAddr ? h("b", {}, row.id) : h("a", { href: row.httpAddr + "/ui/cluster", target: "_self", rel: "noreferrer" }, row.id), row.self && h("span.dim.small.nowrap", {}, " this one")] },
      { name: "State", wide: true, cell: stateOf },
      { name: "Leads", num: true, cell: (row) => h("span", { title: row.leads.length ? "Shards " + row.leads.join(", ") : null }, count(row.leads.length)) },
      { name: "Disk", kind: "disk", cell: disk },
      { name: "Memory", num: true, less: true, cell: (row) => (row.memoryBytes === undefined ? "–" : bytes(row.memoryBytes)) },
      { name: "Release", less: true, cell: (row) => row.version || "–" },
      { name: "Formats", num: true, less: true, title: "The newest level of formats that the node knows", cell: (row) => String(row.level) },
      { name: "Up since", less: true, cell: (row) => h("span.nowrap", {}, row.startedAt ? instant(row.startedAt) : "–") },
      { name: "Link", less: true, cell: (row) => h("span.mono.small", {}, row.addr) },
    ],
  });

  const shards = table({
    caption: "Shards",
    key: (row) => String(row.shard),
    columns: [
      { name: "Shard", cell: (row) => [String(row.shard), row.changing && [" ", h("span.tag.warn", { title: "Its membership is not settled" }, "changing")]] },
      { name: "Leader", cell: (row) => [row.leader || h("span.tag.bad", {}, "none known"), row.leader && row.preferred && row.leader !== row.preferred && h("div.dim.small.nowrap", {}, "should be " + row.preferred)] },
      { name: "Replicas", wide: true, cell: (row) => h("div.chips", {}, row.replicas.map((each) => replica(each, row))) },
      { name: "Term", num: true, less: true, cell: (row) => count(row.term) },
      { name: "Committed", num: true, less: true, cell: (row) => count(row.commitIndex) },
      { name: "Log", num: true, less: true, cell: (row) => bytes(Math.max(0, ...row.replicas.map((each) => each.logBytes || 0))) },
      { name: "", cell: (row) => h("button.plain", { type: "button", "aria-label": `Transfer shard ${row.shard}`, onclick: () => transfer(row) }, "Transfer") },
    ],
  });

  async function transfer(row) {
    const voters = row.replicas.filter((each) => each.voter && each.node !== row.leader);
    let to = "";
    const done = await ask({
      title: `Transfer the leadership of shard ${row.shard}?`,
      button: "Transfer",
      body: [
        h("p", {}, `${row.leader || "Nobody"} leads it. Requests for it wait for a moment. ${row.preferred || "The preferred node"} takes it back after a while, as long as it is up to date.`),
        choice("To", [["", "whichever node has most of its log"], ...voters.map((each) => [each.node, each.node + (each.connected ? "" : ", which is away")])], "", (chosen) => { to = chosen; }),
      ],
      send: () => post("/cluster/transfer", to ? { shard: row.shard, to } : { shard: row.shard }),
    });
    if (!done) return;
    toast(done.changed ? `Shard ${row.shard} is led by ${done.leader}` : `Shard ${row.shard} was led by ${done.leader} already`);
    feed.refresh();
  }

  async function rebalance() {
    const astray = misplaced();
    const sure = await confirm({
      title: `Transfer ${plural(astray.length, "leadership")}?`,
      text: "Each of these shards is to be led by the node that should lead it: " + astray.map((row) => `${row.shard} by ${row.preferred}`).join(", ") + ".",
      button: "Rebalance",
    });
    if (!sure) return;
    let moved = 0;
    for (const row of astray) {
      try {
        moved += (await post("/cluster/transfer", { shard: row.shard, to: row.preferred })).changed ? 1 : 0;
      } catch (failure) {
        // The node is away, or behind: the others may well do.
        failed(new Error(`Shard ${row.shard} is not led by ${row.preferred}: ${failure.message}`));
      }
    }
    toast(`${plural(moved, "leadership")} transferred`);
    feed.refresh();
  }

  const misplaced = () => view.shards.filter((row) => row.leader && row.preferred && row.leader !== row.preferred);

  function draw() {
    const up = view.nodes.filter((row) => row.connected).length;
    const led = view.shards.filter((row) => row.leader).length;
    const lags = view.shards.flatMap((row) => row.replicas.map((each) => each.lag || 0));
    const behind = Math.max(0, ...lags);
    const releases = [...new Set(view.nodes.map((row) => row.version).filter(Boolean))];
    const astray = misplaced().length;
    patch(figures, [
      figure({ name: "Nodes", kind: up === view.nodes.length ? "completed" : "failed", value: `${up} of ${view.nodes.length}`, note: "connected with this one" }),
      figure({ name: "Shards with a leader", kind: led === view.shards.length ? "completed" : "failed", value: `${led} of ${view.shards.length}`, note: astray ? `${astray} led by another than should` : "as they should be" }),
      figure({ name: "Farthest behind", kind: behind > LAG_HIGH ? "failed" : "", value: count(behind), note: behind === 1 ? "entry" : "entries" }),
      figure({ name: "Formats in use", value: String(view.level), note: "level" }),
      figure({ name: "Release", value: releases.length > 1 ? "mixed" : releases[0] || "–", note: releases.length > 1 ? releases.join(", ") : "" }),
    ]);
    patch(actions, h("button", { type: "button", disabled: astray === 0, onclick: rebalance }, "Rebalance"));
    nodes.draw(view.nodes);
    shards.draw(view.shards);
    kept.place(view.backups);
  }

  const feed = follow("cluster", {}, (part, data) => {
    if (part !== "view") return;
    view = data;
    draw();
  });
  return {
    title: "Cluster",
    close: kept.close,
    node: h("div", {}, head("Cluster", { tools: actions }), h("div.stack", {}, figures,
      card("Nodes", nodes.node, { flush: true }),
      card("Shards", shards.node, { flush: true, aside: h("span.dim.small", {}, "a replica's number is how many entries it lacks") }),
      kept.node,
      h("p.dim.small", {}, "What was changed here is on record: ", h("a", { href: href("audit") }, "Audit"), "."))),
  };
}

function stateOf(row) {
  if (!row.connected) return [h("span.tag.bad", {}, "away"), row.awaySince && [" lost ", instant(row.awaySince)], row.remedy && h("div.small.break", {}, row.remedy)];
  if (row.version === undefined) return h("span.tag.warn", {}, "does not say");
  if (row.missing && row.missing.length) return [h("span.tag.warn", {}, "not ready"), row.missing.map((text) => h("div.small.break", {}, text))];
  return [h("span.tag.good", {}, "ready"), !row.voter && [" ", h("span.tag", {}, "learner")]];
}

function disk(row) {
  if (row.diskBytes === undefined) return "–";
  const used = 1 - row.diskFreeBytes / row.diskBytes;
  const bar = h("div.share", { "aria-hidden": "true" }, h("i.used", { class: 1 - used < DISK_LOW ? "warn" : "" }));
  bar.firstChild.style.flexGrow = String(used);
  const rest = h("i");
  rest.style.flexGrow = String(1 - used);
  bar.append(rest);
  return [bar, h("div.dim.small.nowrap", {}, `${bytes(row.diskFreeBytes)} free`)];
}

function replica(each, shard) {
  const leads = each.node === shard.leader;
  const tone = each.out || !each.connected ? "bad" : each.lag > LAG_HIGH ? "warn" : leads ? "lead" : "";
  const words = each.out || (!each.connected ? "away" : leads ? "leads" : each.lag === undefined ? "lag not known" : each.lag === 0 ? "up to date" : `lacks ${count(each.lag)} entries`);
  const title = `${each.node}: ${words}${each.voter ? "" : ", does not vote"}`;
  return h("span.chip", { class: tone, title, "aria-label": title, role: "img" }, each.node, !leads && each.connected && each.lag !== undefined && h("b", {}, count(each.lag)), (each.out || !each.connected) && h("b", {}, "!"));
}
