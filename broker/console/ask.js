// A message that is tried: its keys, and for one key why it is an answer or is not, as a tree.

import { h, many, field, number, plain, problem, say, stored as text } from "./page.js";
import { Failed, call, checkedKey, withKey } from "./service.js";

const MOST_KEYS = 200;

export const ask = {
  title: "Try a message", label: "Try",
  show(own) {
    const { query } = own;
    const names = own.info.plane ? ["x", "y"] : ["Longitude", "Latitude"];
    const form = h("form", { class: "card" },
      field("Tags", "tags", "textarea", { value: JSON.parse(query.get("tags") ?? "[]").join("\n") }, "One a line."),
      field("Attributes", "attributes", "textarea", { value: query.get("attributes") ?? "" }, "One a line, such as: price = 850"),
      h("div", { class: "pair" }, field(names[0], "lon", "text", { inputmode: "decimal", value: query.get("lon") ?? "" }), field(names[1], "lat", "text", { inputmode: "decimal", value: query.get("lat") ?? "" })),
      field("Why this key?", "key", "text", { value: query.get("key") ?? "" }, "Optional: a key, to see which of its tests hold."),
      h("button", {}, "Match"));
    const answer = h("div", { class: "answer" });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const [, error] = await own.try((signal) => matched(form, answer, own, signal));
      if (error && error.name !== "AbortError") answer.replaceChildren(problem(error));
    });
    own.put(h("div", { class: "halves" }, form, answer));
    if (query.size) form.requestSubmit();
  },
};

async function matched(form, answer, own, signal) {
  const message = messageOf(form.elements), key = form.elements.key.value.trim();
  const { found } = await call("POST", "match", { body: { ...message, unique: true }, signal });
  const why = h("div", { class: "why", "aria-live": "polite" });
  const explain = async (wanted) => {
    const [, error] = await own.try(async (ends) => {
      const isNumber = own.info.key_type === "integer";
      const body = withKey(message, checkedKey(wanted, isNumber), isNumber);
      why.replaceChildren(tree((await call("POST", "explain", { body, signal: ends })).found));
    });
    if (error && error.name !== "AbortError") why.replaceChildren(problem(error));
  };
  const { keys } = found, some = keys.slice(0, MOST_KEYS).map(String);
  const count = keys.length === 1 ? "1 key matches." : `${number(keys.length)} keys match.`;
  say(count);
  answer.replaceChildren(h("h2", {}, count),
    h("ul", { class: "keys" }, some.map((each) => h("li", {}, h("button", { type: "button", "aria-label": `Why ${plain(each, 80)}?`, onclick: () => explain(each) }, text(each, 80))))),
    h("p", { hidden: keys.length <= MOST_KEYS }, `The first ${MOST_KEYS} are shown.`), why);
  if (key) await explain(key);
}

function messageOf(given) {
  const message = { tags: given.tags.value.split("\n").map((tag) => tag.trim()).filter(Boolean) };
  const attributes = {};
  for (const line of given.attributes.value.split("\n").filter((each) => each.trim())) {
    const cut = line.indexOf("=");
    if (cut < 1) throw new Failed(0, `An attribute is a name, “=” and a value, not “${line}”.`);
    attributes[line.slice(0, cut).trim()] = valueOf(line.slice(cut + 1).trim());
  }
  if (Object.keys(attributes).length) message.attributes = attributes;
  const place = [given.lon.value.trim(), given.lat.value.trim()];
  if (place.some(Boolean)) {
    if (!place.every((each) => each !== "" && Number.isFinite(Number(each)))) throw new Failed(0, "A location is two numbers.");
    message.location = place.map(Number);
  }
  return message;
}

// A value of JSON, or else a text
function valueOf(given) {
  try {
    return JSON.parse(given);
  } catch {
    return given;
  }
}

const MARKS = { true: "holds", false: "fails" };
const mark = (holds) => h("span", { class: `mark ${MARKS[holds]}` }, holds ? "✓ holds" : "✗ fails");

export function tree(found) {
  const sets = found.alternatives;
  const head = h("h2", {}, "Key ", text(found.key, 200), found.matches ? " matches" : " does not match");
  if (!sets.length) return h("section", { class: "card" }, head, h("p", {}, "No set has this key; a change that is not consolidated yet may have it."));
  return h("section", { class: "card" }, head, h("ul", { class: "tree" }, sets.slice(0, 20).map((set, place) => h("li", {},
    h("details", { open: place < 3 }, h("summary", {}, mark(set.holds), ` Set ${place + 1}: ${failing(set)}`),
      h("ul", {}, set.tests.length ? set.tests.map(test) : h("li", {}, "It asks for nothing.")))))),
  sets.length > 20 && h("p", {}, `Not shown: ${many(sets.length - 20, "more set")}.`));
}

function failing(set) {
  const count = set.tests.filter((each) => !each.holds).length;
  return count ? `${count} of ${set.tests.length} tests ${count === 1 ? "fails" : "fail"}` : "all of its tests hold";
}

const test = (each) => h("li", {}, mark(each.holds), ` ${each.kind} `, h("code", {}, text(each.test, 600)),
  each.why ? h("small", {}, text(each.why, 600)) : each.has && each.kind !== "tag" && h("small", {}, "the message has ", text(each.has, 600)));
