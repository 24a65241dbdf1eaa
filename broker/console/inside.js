// Sessions and outboxes; segments, journal and merges; calls by user.

import { ask, h, bytes, many, facts, number, plain, problem, say, stored as text, table } from "./page.js";
import { call, get, pathOf } from "./service.js";

const EVERY_S = 5;
const said = (name) => name.replaceAll("_", " ");
const figures = (counts) => facts(Object.entries(counts).map(([name, value]) => [said(name), name.includes("bytes") ? bytes(value) : number(value)]));

export const sessions = {
  title: "Sessions and outboxes", label: "Sessions", whole: true,
  show(own) {
    own.watch(async (signal) => {
      const [listed, { service }] = await Promise.all([get("sessions", {}, signal), get("stats", { details: true }, signal)]);
      const columns = [
        ["Session", (each) => h("a", { href: `#/session?${new URLSearchParams({ name: each.session })}` }, text(each.session))], ["User", (each) => text(each.user)],
        ["Connected", (each) => (each.connected ? "yes" : `no, ends in ${number(each.ends_in ?? 0)} s`)],
        ["Guarantee", (each) => said(each.guarantee)], ["Keys", (each) => (each.keys === null ? "every key" : number(each.keys)), true],
        ["Waiting", (each) => each.waiting, true], ["Bytes", (each) => bytes(each.bytes), true],
      ];
      const { sessions: together, hub, ...gateways } = service.subscribers;
      own.put(listed.sessions.length ? table(own.may("admin") ? "Sessions of all users" : "Your sessions", columns, listed.sessions) : h("p", {}, "There is no session."),
        together && h("section", { class: "card" }, h("h2", {}, "All outboxes together"), figures(together)),
        hub && h("section", { class: "card" }, h("h2", {}, "Messages that are published"), figures(hub)),
        Object.entries(gateways).map(([name, counts]) => h("section", { class: "card" }, h("h2", {}, "Gateway ", text(name)),
          h("p", {}, plain(service.gateways[name] ?? "")), figures(counts))));
    }, EVERY_S);
  },
};

export const session = {
  title: "Session", under: "sessions", whole: true,
  show(own) {
    const name = own.query.get("name") ?? "";
    own.watch(async (signal) => {
      const found = (await get("sessions", {}, signal)).sessions.find((each) => each.session === name);
      if (!found) return own.put(h("p", {}, "There is no such session any more."));
      const { user, connected, guarantee, waiting } = found;
      const buttons = h("p", { class: "buttons" }, h("button", { type: "button", class: "danger", onclick: () => ask(own, buttons,
        { name: "End this session", question: `End this session with ${many(waiting, "waiting notification")}?`, no: "Keep it", yes: "End it" },
        (end) => call("DELETE", pathOf("sessions", name), { signal: end }), "#/sessions") }, "End"));
      own.put(h("p", { class: "key" }, "Session ", text(name)), facts([["User", text(user)], ["Connected", connected ? "yes" : "no"],
        ["Guarantee", said(guarantee)], ["Waiting", number(waiting)]]), buttons);
    });
  },
};

export const index = {
  title: "Index", label: "Index",
  show(own) {
    own.watch(async (signal) => {
      const stats = await get("stats", own.info.has_filter ? {} : { details: true }, signal);
      const segments = stats.each_segment ?? [], most = Math.max(1, ...segments.map((each) => each.sets + each.deleted));
      const columns = [
        ["Segment", (each) => number(segments.indexOf(each) + 1)],
        ["Sets", (each) => each.sets, true], ["Deleted", (each) => each.deleted, true], ["Keys", (each) => each.keys, true],
        ["Memory", (each) => bytes(each.bytes), true], ["Size", (each) => h("meter", { min: 0, max: most, value: each.sets, "aria-label": "share of the largest segment" })],
        ["Merge", (each) => (each.merges ? "due" : "")],
      ];
      const kept = [["Snapshot", (each) => number(each.number), true], ["Sets", (each) => each.sets, true], ["Until", (each) => each.until ?? "the current one"]];
      own.put(h("section", { class: "card" }, facts([
        ["Sets", number(stats.sets)], ["Keys", number(stats.keys)], ["Tags", number(stats.tags)], ["Memory", bytes(stats.index_bytes)],
        ["Sets with conditions", number(Object.values(stats.with_conditions).reduce((sum, each) => sum + each, 0))], ["Sets with areas", number(stats.with_areas)],
        ["Clients with positions", number(stats.positions)], ["Layout", stats.layout], ["Device", stats.devices.join(", ")],
        ["Answers", stats.exact ? "exact" : "by signatures"], ["Path", stats.path && text(stats.path)], ["Version", own.info.version],
      ])),
      h("section", { class: "card" }, h("h2", {}, "Journal"), facts([
        ["Staged changes", number(stats.staged)], ["Snapshot", stats.number === null ? "in memory" : number(stats.number)],
        ["Added since the start", number(stats.changes.added)], ["Removed since the start", number(stats.changes.removed)],
        ["Reload", stats.reload_error && text(stats.reload_error)],
      ]), own.may("write") && consolidating(own)),
      segments.length > 0 && table("Segments", columns, segments),
      segments.length > 0 && h("p", {}, stats.to_merge ? `Due to be merged: ${many(stats.to_merge, "segment")}.` : "No merge is due."),
      stats.snapshots?.length > 0 && table("Snapshots that can be opened", kept, stats.snapshots));
    }, EVERY_S);
  },
};

function consolidating(own) {
  const button = h("button", { type: "button", onclick: async () => {
    const [done, error] = await own.try((signal) => call("POST", "consolidate", { body: {}, signal }));
    if (error) return button.after(problem(error));
    const changes = Object.entries(done.found.changes).filter(([, count]) => count).map(([name, count]) => `${number(count)} ${said(name)}`);
    say(`Staged changes are in effect: ${changes.join(", ") || "nothing has changed"}.`);
  } }, "Consolidate");
  return h("p", { class: "buttons" }, button);
}

export const calls = {
  title: "Users and their calls", label: "Users", role: "admin",
  show(own) {
    own.watch(async (signal) => {
      const [{ users }, { service }] = await Promise.all([get("calls", {}, signal), get("stats", { details: true }, signal)]);
      const columns = [["User", ([name]) => text(name)], ["Calls under way", ([, each]) => each.calls, true], ["Memory", ([, each]) => bytes(each.bytes), true]];
      own.put(table("Users with calls under way", columns, Object.entries(users)),
        counted("Calls by name", service.calls), counted("Errors by kind", service.errors), counted("Refused, by reason", service.refused));
    }, EVERY_S);
  },
};

function counted(caption, counts) {
  const rows = Object.entries(counts).sort((one, other) => other[1] - one[1]);
  return rows.length > 0 && table(caption, [["Name", ([name]) => text(name)], ["Count", ([, count]) => count, true]], rows);
}
