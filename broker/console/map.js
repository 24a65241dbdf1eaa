// Areas of subscriptions, and places of clients, on a map with a graticule and coastlines; on the plane without these.

import { h, colour, many, field, number, say, stored as text, table } from "./page.js";
import { call, get } from "./service.js";
import { areaText, found as subscriptions } from "./stored.js";

const MOST_AREAS = 500, MOST_CLIENTS = 2000, METRES_A_DEGREE = 111_195;
const STEPS = [90, 45, 30, 15, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001];

// What is drawn of an area: lines of [x, y], which are borders if they are closed, or have a width in degrees
export function outline(area, plane) {
  if (area.kind === "box") {
    const { west, south, north } = area, east = !plane && area.east < west ? area.east + 360 : area.east;
    return { closed: true, lines: [[[west, south], [east, south], [east, north], [west, north]]] };
  }
  if (area.kind === "circle") {
    const up = area.metres / (plane ? 1 : METRES_A_DEGREE);
    const across = plane ? up : Math.min(180, up / Math.max(0.01, Math.cos((area.lat * Math.PI) / 180)));
    const line = Array.from({ length: 72 }, (_, i) => [area.lon + across * Math.cos((i * Math.PI) / 36), area.lat + up * Math.sin((i * Math.PI) / 36)]);
    return { closed: true, lines: [line] };
  }
  const written = area.text ?? "", corridor = /^([\d.e+-]+) m of /i.exec(written);
  const lines = [...written.matchAll(/\(([^()]+)\)/g)].map(([, numbers]) => numbers.split(",")
    .map((pair) => pair.trim().split(/\s+/).map(Number)).filter((pair) => pair.length > 1 && pair.every(Number.isFinite)));
  return { closed: !corridor, width: corridor ? (2 * Number(corridor[1])) / (plane ? 1 : METRES_A_DEGREE) : 0, lines };
}

let coast = null;

async function coastline() {
  coast ??= (await (await fetch(new URL("coast.json", import.meta.url))).json()).flatMap((steps) => {
    let x = 0, y = 0;
    const lines = [[]];
    for (let i = 0; i < steps.length; i += 2) {
      if (i && Math.abs(steps[i]) > 1800) lines.push([]); // it goes on at the other edge of the map
      lines.at(-1).push([(x += steps[i]) / 10, (y += steps[i + 1]) / 10]);
    }
    return lines;
  });
  return coast;
}

class Chart {
  constructor(canvas, plane) {
    Object.assign(this, { canvas, plane, areas: [], clients: [], coast: [], centre: [0, 0], scale: 1, least: 1 });
  }

  home() {
    const every = [...this.areas.flatMap((each) => each.lines.flat()), ...this.clients];
    const [xs, ys] = [0, 1].map((axis) => every.map((each) => each[axis]));
    const box = every.length ? [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)] : this.plane ? [-1, -1, 1, 1] : [-180, -85, 180, 85];
    const [west, south, east, north] = box, { clientWidth, clientHeight } = this.canvas;
    this.centre = [(west + east) / 2, (south + north) / 2];
    const across = Math.max(east - west, this.plane ? 1e-9 : 0.02), up = Math.max(north - south, this.plane ? 1e-9 : 0.02);
    this.scale = 0.85 * Math.min(clientWidth / across, clientHeight / up);
    this.least = Math.min(this.scale, this.plane ? Infinity : clientWidth / 360) / 2;
    this.draw();
  }

  move(right, up) {
    this.centre = [this.centre[0] + right / this.scale, this.centre[1] + up / this.scale];
    if (!this.plane) this.centre = [Math.max(-180, Math.min(180, this.centre[0])), Math.max(-90, Math.min(90, this.centre[1]))];
    this.draw();
  }

  zoom(times) {
    this.scale = Math.min(Math.max(this.scale * times, this.least), this.least * 1e9);
    this.draw();
  }

  at([x, y]) {
    const { clientWidth, clientHeight } = this.canvas;
    return [clientWidth / 2 + (x - this.centre[0]) * this.scale, clientHeight / 2 - (y - this.centre[1]) * this.scale];
  }

  trace(pen, line) {
    line.forEach((each, i) => (i ? pen.lineTo(...this.at(each)) : pen.moveTo(...this.at(each))));
  }

  draw() {
    const { canvas } = this, { clientWidth, clientHeight } = canvas, ratio = devicePixelRatio || 1;
    if (!clientWidth) return;
    canvas.width = clientWidth * ratio;
    canvas.height = clientHeight * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    this.graticule(pen);
    pen.strokeStyle = colour("quiet");
    pen.lineWidth = 1;
    pen.beginPath();
    for (const line of this.coast) this.trace(pen, line);
    pen.stroke();
    pen.strokeStyle = colour("accent");
    pen.fillStyle = colour("accent");
    pen.lineJoin = pen.lineCap = "round";
    for (const { closed, width, lines } of this.areas) {
      pen.beginPath();
      for (const line of lines) {
        this.trace(pen, line);
        if (closed) pen.closePath();
      }
      pen.globalAlpha = 0.12;
      pen.lineWidth = closed ? 1 : Math.max(1, width * this.scale);
      if (closed) pen.fill("evenodd");
      else pen.stroke();
      pen.globalAlpha = pen.lineWidth = 1;
      pen.stroke();
    }
    pen.fillStyle = colour("second");
    for (const each of this.clients) {
      const [x, y] = this.at(each);
      pen.fillRect(x - 2, y - 2, 4, 4);
    }
  }

  graticule(pen) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const step = this.plane ? 10 ** Math.ceil(Math.log10(90 / this.scale)) : (STEPS.findLast((each) => each * this.scale >= 90) ?? 90);
    const digits = Math.max(0, Math.ceil(-Math.log10(step)));
    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("quiet");
    pen.beginPath();
    const [west, south] = [this.centre[0] - width / 2 / this.scale, this.centre[1] - height / 2 / this.scale];
    for (let x = Math.ceil(west / step) * step; x < west + width / this.scale; x += step) {
      const [at] = this.at([x, 0]);
      pen.moveTo(at, 0);
      pen.lineTo(at, height);
      pen.fillText(this.plane ? number(x, digits) : `${number(Math.abs(x), digits)}° ${x < 0 ? "W" : "E"}`, at + 3, height - 4);
    }
    for (let y = Math.ceil(south / step) * step; y < south + height / this.scale; y += step) {
      if (!this.plane && Math.abs(y) > 90) continue;
      const [, at] = this.at([0, y]);
      pen.moveTo(0, at);
      pen.lineTo(width, at);
      pen.fillText(this.plane ? number(y, digits) : `${number(Math.abs(y), digits)}° ${y < 0 ? "S" : "N"}`, 3, at - 3);
    }
    pen.stroke();
  }

  listen(signal) {
    const { canvas } = this, keys = {
      ArrowLeft: () => this.move(-60, 0), ArrowRight: () => this.move(60, 0), ArrowUp: () => this.move(0, 60), ArrowDown: () => this.move(0, -60),
      "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), Home: () => this.home(),
    };
    canvas.addEventListener("keydown", (event) => keys[event.key] && (event.preventDefault(), keys[event.key]()));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && this.move(-event.movementX, event.movementY));
    document.addEventListener("colours", () => this.draw(), { signal });
    const sizes = new ResizeObserver(() => this.draw());
    sizes.observe(canvas);
    signal.addEventListener("abort", () => sizes.disconnect());
  }
}

export const map = {
  title: "Areas and positions", label: "Map",
  show(own) {
    const key = own.query.get("key"), { plane, has_filter: hasFilter } = own.info;
    own.watch(async (signal) => {
      const [found, stats] = await Promise.all([
        key === null ? subscriptions({ tag: own.query.get("tag") }, MOST_AREAS, signal)
          : call("GET", `subscriptions/${encodeURIComponent(key)}`, { signal }).then((each) => ({ subscriptions: [each.found], next: null })),
        key === null && !hasFilter ? get("stats", { positions: MOST_CLIENTS }, signal) : {},
      ]);
      const areas = found.subscriptions.flatMap((record) => record.alternatives.filter((each) => each.area && each.area.kind !== "near").map(({ area }) => ({ key: record.key, area })));
      const canvas = h("canvas", { class: "map", tabindex: "0", role: "img", "aria-label": "A map of the areas below. Arrow keys move it, plus and minus zoom, Home shows all." });
      const chart = new Chart(canvas, plane);
      chart.areas = areas.map(({ area }) => outline(area, plane));
      chart.clients = (stats.clients?.lon ?? []).map((lon, i) => [lon, stats.clients.lat[i]]);
      if (!plane) chart.coast = await coastline();
      const button = (label, act) => h("button", { type: "button", onclick: act }, label);
      const form = key === null && h("form", { class: "card search", role: "search" }, field("Key", "key", "search"),
        field("Has the tag", "tag", "search", { value: own.query.get("tag") ?? "" }), h("button", {}, "Search"));
      if (form) form.addEventListener("submit", (event) => {
        event.preventDefault();
        location.hash = `#/map?${new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""))}`;
      });
      const what = `${many(areas.length, "area")} of ${many(found.subscriptions.length, "subscription")}, ${many(chart.clients.length, "position")} of clients`;
      own.put(form, h("p", {}, what, found.next !== null && ". There are more subscriptions: search for some."), canvas,
        h("p", { class: "buttons" }, button("Zoom in", () => chart.zoom(1.5)), button("Zoom out", () => chart.zoom(1 / 1.5)), button("Show all", () => chart.home())),
        areas.length > 0 && table("Areas", [["Key", (each) => h("a", { href: `#/record?${new URLSearchParams({ key: each.key })}` }, text(each.key, 120))], ["Area", (each) => h("code", {}, text(areaText(each.area), 200))]], areas.slice(0, 100)));
      chart.listen(own.signal);
      chart.home();
      say(what);
    });
  },
};
