// The page: who is signed in, which view is shown, and whether the service answers.

import { h, field, plain, problem, say } from "./page.js";
import { call, token, watch } from "./service.js";
import { change, record, stored } from "./stored.js";
import { ask } from "./ask.js";
import { map } from "./map.js";
import { live } from "./live.js";
import { calls, index, session, sessions } from "./inside.js";

const VIEWS = { stored, try: ask, map, live, sessions, session, index, calls, record, change };
const RIGHTS = ["read", "write", "admin"];
const main = document.getElementById("main");
const state = { info: null, shown: null };

// A service that follows another's index refuses changes
const may = (role) => RIGHTS.indexOf(state.info.role) >= RIGHTS.indexOf(role) && !(role === "write" && state.info.follows);
// Users with a filter do not see what a view shows of the whole service
const mayShow = ({ role = "read", whole }) => may(role) && !(whole && state.info.has_filter);

// -- the service --

function gone(error, wait, again) {
  const line = document.getElementById("gone");
  if (error === null) {
    if (!line.hidden) say("The service answers again.");
    line.hidden = true;
    return;
  }
  line.replaceChildren(plain(error.message), ` It is asked again in ${wait} s. `, h("button", { type: "button", onclick: again }, "Ask now"));
  line.hidden = false;
}

function failed(error) {
  if (error.status === 401) {
    const had = token.get() !== null;
    token.set(null);
    return signIn(had ? `The token is not valid, or not any more: ${error.message}` : "");
  }
  main.querySelector("#loading")?.remove();
  main.querySelector(":scope > .problem")?.remove();
  main.append(problem(error));
}

function signIn(why) {
  state.shown?.abort();
  state.info = null;
  around();
  const form = h("form", { class: "card sign-in" }, h("h1", { tabindex: "-1" }, "Sign in"),
    h("p", {}, "This service asks for a token, as ", h("code", {}, "tagmatch token NAME --role read"), " makes one."),
    why && h("p", { class: "problem", role: "alert" }, plain(why)),
    field("Token", "token", "password", { required: true, autofocus: true }, "It is kept until this tab is closed."),
    h("button", {}, "Sign in"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    token.set(form.elements.token.value.trim());
    begin();
  });
  document.title = "Sign in · tagmatch";
  main.replaceChildren(form);
  form.elements.token.focus();
}

function begin() {
  state.shown?.abort();
  const shown = (state.shown = new AbortController());
  watch(async (signal) => {
    state.info = (await call("GET", "info", { signal })).found;
    around();
    show();
  }, { signal: shown.signal, gone, failed });
}

// -- what is around a view --

const places = () => [...main.querySelectorAll("[tabindex], a, button, input, textarea, summary")];

function around() {
  const { info } = state;
  document.querySelector("nav").hidden = document.getElementById("leave").hidden = info === null;
  document.getElementById("leave").hidden ||= token.get() === null;
  document.getElementById("who").replaceChildren(...(info ? [h("bdi", {}, plain(info.user, 40)), ` (${info.role})`] : []));
  const links = Object.entries(VIEWS).filter(([, view]) => info && view.label && mayShow(view));
  document.getElementById("views").replaceChildren(...links.map(([name, view]) => h("li", {}, h("a", { href: `#/${name}` }, view.label))));
}

function show() {
  if (state.info === null) return;
  state.shown?.abort();
  gone(null);
  const shown = (state.shown = new AbortController());
  const [path, query = ""] = location.hash.replace(/^#\//, "").split("?");
  const name = Object.hasOwn(VIEWS, path) && mayShow(VIEWS[path]) ? path : "stored";
  const view = VIEWS[name], at = view.under ?? name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${at}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} · tagmatch`;
  const heading = h("h1", { tabindex: "-1" }, view.title), loading = h("p", { id: "loading" }, "Loading…");
  main.replaceChildren(heading, loading);
  say("");
  const own = {
    info: state.info, may, signal: shown.signal, query: new URLSearchParams(query),
    // What a view shows comes behind the heading; what is shown anew leaves the focus at the same place
    put: (...parts) => {
      const at = places().indexOf(document.activeElement);
      main.replaceChildren(heading, ...parts.flat().filter(Boolean));
      if (at >= 0) places()[at]?.focus({ preventScroll: true });
    },
    watch: (work, every) => watch(work, { every, signal: shown.signal, gone, failed }),
    // Once, as a button says; errors are returned, except those that all views have
    try: async (work) => {
      try {
        return [await work(shown.signal), null];
      } catch (error) {
        if (!shown.signal.aborted && error.status === 401) failed(error);
        return [null, error];
      }
    },
  };
  if (state.moved) heading.focus();
  state.moved = true;
  view.show(own);
}

// -- light and dark --

const DARK = matchMedia("(prefers-color-scheme: dark)");

function themed() {
  const chosen = localStorage.getItem("tagmatch-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  const dark = chosen ? chosen === "dark" : DARK.matches;
  const button = document.getElementById("theme");
  button.textContent = dark ? "Light" : "Dark";
  button.setAttribute("aria-label", `${button.textContent} colours`);
  document.dispatchEvent(new Event("colours"));
  return dark;
}

document.getElementById("theme").addEventListener("click", () => {
  localStorage.setItem("tagmatch-theme", themed() ? "light" : "dark");
  themed();
});
DARK.addEventListener("change", themed);
document.getElementById("leave").addEventListener("click", () => {
  token.set(null);
  signIn("");
  begin(); // a service without users needs no token
});
addEventListener("hashchange", show);
themed();
begin();
