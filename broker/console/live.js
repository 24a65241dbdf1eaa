// Messages and keys a second, latency, and channels, while somebody looks; a minute and a half is kept.

import { h, facts, number, plain, say, stored as text, svg, table } from "./page.js";
import { get } from "./service.js";

const EVERY_S = 2, KEPT = 45, WIDTH = 600, HEIGHT = 120;

// Seconds that this share of the answers between two looks took at most, by the bounds of a histogram
export function quantile(now, before, share) {
  const counts = now.map(([, count], i) => count - (before?.[i]?.[1] ?? 0));
  const all = counts.at(-1);
  if (!all) return null;
  const place = counts.findIndex((count) => count >= share * all);
  const bound = now[place][0];
  return bound === "+Inf" ? Number(now[place - 1][0]) : Number(bound);
}

const seconds = (value) => (value === null || value === undefined ? "–" : value < 1 ? `${number(value * 1000, 1)} ms` : `${number(value, 2)} s`);

function chart(title, values, written) {
  const known = values.map((each) => each ?? 0), most = Math.max(...known, 1e-9), last = values.at(-1);
  const at = (value, place) => `${((KEPT - known.length + place) / (KEPT - 1)) * WIDTH},${HEIGHT - 4 - (value / most) * (HEIGHT - 8)}`;
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: now ${written(last)}, at most ${written(most)}`, preserveAspectRatio: "none" },
    svg("polyline", { points: known.map(at).join(" ") }));
  return h("figure", { class: "card chart" }, h("figcaption", {}, title, h("strong", {}, written(last))), drawn, h("small", {}, `at most ${written(most)} in ${number((known.length - 1) * EVERY_S)} s`));
}

export const live = {
  title: "Live", label: "Live", whole: true,
  show(own) {
    const looks = [];
    own.watch(async (signal) => {
      const stats = await get("stats", { details: true }, signal);
      const { service } = stats, at = performance.now() / 1000, before = looks.at(-1);
      const rate = (name) => (before ? Math.max(0, (service[name] - before.service[name]) / (at - before.at)) : 0);
      looks.push({ at, service, messages: rate("messages"), keys: rate("keys"),
        median: quantile(service.latency, before?.service.latency, 0.5), p99: quantile(service.latency, before?.service.latency, 0.99) });
      if (looks.length > KEPT) looks.shift();
      const of = (name) => looks.map((each) => each[name]);
      const each = (value) => number(value ?? 0, 1);
      const channels = Object.entries(stats.channels);
      own.put(h("div", { class: "charts" },
        chart("Messages a second", of("messages"), each), chart("Keys a second", of("keys"), each),
        chart("Latency, median", of("median"), seconds), chart("Latency, 99 of 100", of("p99"), seconds)),
      h("section", { class: "card" }, h("h2", {}, "Now"), facts([
        ["Connections", number(service.limits.connections)], ["Calls under way", number(service.limits.calls)],
        ["Messages in flight", number(service.limits.in_flight)], ["Messages that wait", number(service.limits.queued)],
        ["Messages since the start", number(service.messages)], ["Keys since the start", number(service.keys)],
        ["Errors since the start", number(Object.values(service.errors).reduce((sum, count) => sum + count, 0))],
      ])),
      channels.length > 0 && table("Channels", [["Channel", ([name]) => text(name)],
        ...["offered", "answered", "late", "dropped", "refused", "deserted", "in_flight"].map((name) => [plain(name.replaceAll("_", " ")), ([, counts]) => counts[name] ?? 0, true])], channels));
      if (looks.length === 1) say("Figures come every two seconds.");
    }, EVERY_S);
  },
};
