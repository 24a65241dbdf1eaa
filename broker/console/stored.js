// What is stored: a search, a page at a time; the record of one key; and, for who may, its change.

import { ask, h, many, facts, field, number, plain, problem, say, stored as text, table, tags } from "./page.js";
import { Failed, call, checkedKey, get, pathOf } from "./service.js";

const PAGE = 50;
const link = (view, query) => `#/${view}?${new URLSearchParams(query)}`;

export function areaText(area) {
  if (!area) return "";
  if (area.text) return area.text;
  const { kind, ...numbers } = area;
  return `${kind}(${Object.values(numbers).map((each) => Number(each.toFixed(6))).join(", ")})`;
}

const where = (each) => each.where && h("code", {}, text(each.where, 600));
const area = (each) => each.area && h("code", {}, text(areaText(each.area), 200));
const data = (record) => Object.entries(record.data).map(([name, value]) => h("div", {}, text(name), " = ", text(JSON.stringify(value))));

function alternatives(record, cell) {
  const some = record.alternatives.slice(0, 3).map(cell).filter(Boolean).map((each) => h("div", {}, each));
  return record.alternatives.length > 3 ? [...some, h("div", {}, `and ${number(record.alternatives.length - 3)} more`)] : some;
}

// A page of what is asked for: a search looks on while it finds nothing
export async function found(asked, limit, signal, told) {
  let page = await get("subscriptions", { ...asked, limit }, signal);
  while (!page.subscriptions.length && page.next !== null) {
    told?.(page.next);
    page = await get("subscriptions", { ...asked, limit, after: page.next }, signal);
  }
  return page;
}

export const stored = {
  title: "Stored subscriptions", label: "Stored",
  show(own) {
    const { query, info } = own, isNumber = info.key_type === "integer";
    const form = h("form", { class: "card search", role: "search" },
      isNumber ? field("Key", "key", "search") : field("Key begins with", "prefix", "search", { value: query.get("prefix") ?? "" }),
      field("Has the tag", "tag", "search", { value: query.get("tag") ?? "" }),
      field("Conditions contain", "text", "search", { value: query.get("text") ?? "" }),
      h("button", {}, "Search"),
      own.may("write") && h("a", { class: "button", href: "#/change" }, "Add one"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const asked = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
      location.hash = "key" in asked ? link("record", { key: asked.key }) : link("stored", asked);
    });
    own.watch(async (signal) => {
      const asked = Object.fromEntries(query);
      const { subscriptions, next } = await found(asked, PAGE, signal, (key) => own.put(form, h("p", { role: "status" }, "None so far, up to the key ", text(key, 120), ".")));
      const columns = [
        ["Key", (record) => h("a", { href: link("record", { key: record.key }) }, text(record.key, 120))],
        ["Tags", (record) => alternatives(record, (each) => tags(each.tags))],
        ["Conditions", (record) => alternatives(record, where)],
        ["Area", (record) => alternatives(record, area)],
        ["Data", data],
      ].filter(([name, cell]) => ["Key", "Tags"].includes(name) || subscriptions.some((each) => h("p", {}, cell(each)).textContent));
      const { after, ...first } = asked;
      const pages = h("p", { class: "pages" },
        after !== undefined && h("a", { class: "button", href: link("stored", first) }, "First page"),
        next !== null && h("a", { class: "button", href: link("stored", { ...first, after: next }) }, "Next page"));
      say(subscriptions.length ? `${many(subscriptions.length, "subscription")} on this page.` : "No subscription is like this.");
      own.put(form, subscriptions.length ? table("Subscriptions", columns, subscriptions) : h("p", {}, "No subscription is like this."), pages);
    });
  },
};

const path = (key) => pathOf("subscriptions", key);

export const record = {
  title: "Record", under: "stored",
  show(own) {
    const key = own.query.get("key") ?? "";
    own.watch(async (signal) => {
      const { found, etag } = await call("GET", path(key), { signal });
      const one = found.alternatives.length === 1;
      const shown = found.alternatives.map((each, place) => h("section", { class: "card" }, !one && h("h2", {}, `Alternative ${place + 1}`),
        facts([["Tags", tags(each.tags)], ["Conditions", where(each)], ["Area", area(each)], ["Expires", each.expires]]),
        h("p", {}, h("a", { href: link("try", { tags: JSON.stringify(each.tags), key }) }, "Try a message with these tags"),
          each.area && [" · ", h("a", { href: link("map", { key }) }, "See it on the map")])));
      const buttons = own.may("write") && h("p", { class: "buttons" },
        one && h("a", { class: "button", href: link("change", { key }) }, "Change"),
        h("button", { type: "button", class: "danger", onclick: () => remove(own, key, etag, buttons) }, "Remove"));
      own.put(h("p", { class: "key" }, "Key ", text(key, 1000)), shown, Object.keys(found.data).length > 0 && h("section", { class: "card" }, h("h2", {}, "Data"), data(found)), buttons);
    });
  },
};

const remove = (own, key, etag, buttons) => ask(own, buttons,
  { name: "Remove this key", question: "Remove this key with all that it has?", no: "Keep it", yes: "Remove it" },
  (signal) => call("DELETE", path(key), { signal, headers: etag ? { "If-Match": etag } : {} }), "#/stored");

export const change = {
  title: "Add or change a subscription", under: "stored", role: "write",
  show(own) {
    const key = own.query.get("key");
    own.watch(async (signal) => {
      const { found, etag } = key === null ? {} : await call("GET", path(key), { signal });
      const now = found?.alternatives[0] ?? { tags: [], where: "", area: null, expires: "" };
      const plainData = found?.data ?? {};
      const form = h("form", { class: "card" },
        field("Key", "key", "text", { value: key ?? "", required: true, readonly: key !== null }),
        field("Tags", "tags", "textarea", { value: now.tags.join("\n") }, "One a line."),
        field("Conditions", "where", "textarea", { value: now.where ?? "" }, "Such as: price < 900 and city = \"Lyon\""),
        field("Area", "area", "textarea", { value: now.area ? JSON.stringify(now.area) : "" }, "Such as: {\"kind\": \"circle\", \"lon\": 4.8, \"lat\": 45.8, \"metres\": 2000}"),
        field("Expires", "expires", "text", { value: now.expires ?? "" }, "Such as: 2035-01-31T12:00:00Z"),
        field("Data", "data", "textarea", { value: Object.keys(plainData).length ? JSON.stringify(plainData) : "" }, "Such as: {\"tenant\": \"acme\"}"),
        h("button", {}, "Save"));
      form.addEventListener("submit", async (event) => {
        event.preventDefault();
        form.querySelector(".problem")?.remove();
        const [, error] = await own.try((signal) => {
          const { fields, body } = written(form.elements, own.info);
          const headers = key === null ? { "If-None-Match": "*" } : etag ? { "If-Match": etag } : {};
          return call("PUT", path(fields), { body, signal, headers });
        });
        if (error === null) location.hash = link("record", { key: form.elements.key.value });
        else form.append(problem(error.status === 412 ? new Error(key === null ? "This key is stored already." : "Somebody else has changed it meanwhile: load it anew.") : error));
      });
      own.put(form);
    });
  },
};

function written(given, info) {
  const body = { tags: given.tags.value.split("\n").map((tag) => tag.trim()).filter(Boolean) };
  if (given.where.value.trim()) body.where = given.where.value.trim();
  if (given.expires.value.trim()) body.expires = given.expires.value.trim();
  for (const name of ["area", "data"]) if (given[name].value.trim()) body[name] = json(given[name].value, name);
  return { fields: checkedKey(given.key.value, info.key_type === "integer"), body };
}

function json(value, name) {
  try {
    return JSON.parse(value);
  } catch (error) {
    throw new Failed(0, `The field “${name}” is no JSON: ${plain(error.message)}`);
  }
}
