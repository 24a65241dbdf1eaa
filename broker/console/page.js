// Elements of the page, and texts in them. What the service gives becomes text, and never HTML.

export function h(name, given = {}, ...inside) {
  const made = document.createElement(name);
  fill(made, given);
  made.append(...inside.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

export function svg(name, given = {}, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  fill(made, given);
  made.append(...inside);
  return made;
}

function fill(made, given) {
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
}

// Characters that cannot be seen, or that change the order of others, which could make a text look like another one
const ODD = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function plain(text, most = 400) {
  const whole = String(text);
  const some = whole.length > most ? `${whole.slice(0, most)}… (${number(whole.length)} characters)` : whole;
  return some.replace(ODD, (odd) => `\\u${odd.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export const number = (value, digits = 0) => Number(value).toLocaleString("en", { maximumFractionDigits: digits });

export const many = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export function bytes(count) {
  const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = Math.min(steps.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, count)) / 10)));
  return `${number(count / 1024 ** step, step ? 1 : 0)} ${steps[step]}`;
}

export const stored = (text, most) => h("bdi", { class: "stored" }, plain(text, most));

export const tags = (list) => h("ul", { class: "tags" }, list.slice(0, 50).map((tag) => h("li", {}, stored(tag, 120))),
  list.length > 50 && h("li", {}, `and ${number(list.length - 50)} more`));

let fields = 0;

// A label and its input; `kind` is a type of `input`, or "textarea"
export function field(label, name, kind, given = {}, hint = "") {
  const id = `field-${(fields += 1)}`;
  const described = hint && { "aria-describedby": `${id}-hint` };
  const own = kind === "textarea" ? h("textarea", { id, name, rows: 3, spellcheck: "false", ...described, ...given }, given.value ?? "")
    : h("input", { id, name, type: kind, autocomplete: "off", spellcheck: "false", ...described, ...given });
  return h("div", { class: "field" }, h("label", { for: id }, label), own, hint && h("small", { id: `${id}-hint` }, hint));
}

// Columns: [heading, cell of a row, whether it is a number]
export function table(caption, columns, rows) {
  const head = h("tr", {}, columns.map(([name, , right]) => h("th", { scope: "col", class: right && "right" }, name)));
  const body = rows.map((row) => h("tr", {}, columns.map(([name, cell, right]) => {
    const found = cell(row);
    return h("td", { class: right && "right", "data-name": name }, right && typeof found === "number" ? number(found, 3) : found);
  })));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
}

export const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined)
  .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

// What a screen reader says
export function say(text) {
  document.getElementById("said").textContent = text;
}

export const problem = (error) => h("p", { class: "problem", role: "alert" }, plain(error.message, 1000));

// A colour of the style sheet, as a canvas takes it
export function colour(name) {
  const probe = document.body.appendChild(h("i"));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// Asks before something is done that cannot be undone, in the place of the buttons
export function ask(own, buttons, { name, question, no, yes }, work, then) {
  const kept = [...document.getElementById("main").children].slice(1);
  const cancel = h("button", { type: "button", onclick: () => own.put(...kept) }, no);
  const sure = h("div", { class: "card", role: "group", "aria-label": name }, h("p", {}, question),
    h("p", { class: "buttons" }, cancel, h("button", { type: "button", class: "danger", onclick: async () => {
      const [, error] = await own.try(work);
      if (error) sure.append(problem(error));
      else location.hash = then;
    } }, yes)));
  buttons.replaceWith(sure);
  cancel.focus();
}
