// Calls of the service: the token, whole numbers that JavaScript cannot hold, and a service that goes away.

const TOKEN = "tagmatch-token";
const ROOT = new URL("..", document.baseURI);
const PATIENCE_MS = 20_000;
const MOST_WAIT_S = 30;

export class Failed extends Error {
  constructor(status, message, kind) {
    super(message);
    Object.assign(this, { status, kind });
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

// Keys are whole numbers below 2^64: those that a double cannot hold become texts
const PARTS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const parsed = (text) => JSON.parse(text.replace(PARTS, (part) => (/^-?\d{16,}$/.test(part) ? `"${part}"` : part)));

// A body with a key, which is a number of the index or a text
export function withKey(body, key, isNumber) {
  const written = JSON.stringify(body);
  return `${written.slice(0, -1)}${written === "{}" ? "" : ","}"key":${isNumber ? key : JSON.stringify(key)}}`;
}

export function checkedKey(text, isNumber) {
  if (isNumber && !/^\d{1,20}$/.test(text)) throw new Failed(0, `A key of this index is a whole number, not “${text}”.`);
  return isNumber ? text.replace(/^0+(?=\d)/, "") : text;
}

// A name in a path; browsers would take these two for folders
export function pathOf(folder, name) {
  if (["", ".", ".."].includes(name)) throw new Failed(0, `“${name}” has no address here: look at it in the list.`);
  return `${folder}/${encodeURIComponent(name)}`;
}

export async function call(method, path, { query = {}, body, signal, headers = {} } = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
  const own = token.get();
  const given = { ...headers, ...(own && { Authorization: `Bearer ${own}` }), ...(body !== undefined && { "Content-Type": "application/json" }) };
  const ends = AbortSignal.any([AbortSignal.timeout(PATIENCE_MS), ...(signal ? [signal] : [])]);
  let answer, text;
  try {
    const sent = typeof body === "object" ? JSON.stringify(body) : body;
    answer = await fetch(url, { method, headers: given, body: sent, signal: ends, cache: "no-store", credentials: "omit" });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failed(0, error.name === "TimeoutError" ? "The service has not answered in time." : "The service cannot be reached.", "gone");
  }
  let found = null;
  try {
    found = text ? parsed(text) : null;
  } catch {
    throw new Failed(answer.status, `The service has answered with ${answer.status}, and no JSON.`, answer.status >= 500 ? "gone" : "odd");
  }
  if (answer.ok) return { found, etag: answer.headers.get("ETag") };
  const kind = [502, 503, 504].includes(answer.status) && found?.kind !== "DeadlineMissed" ? "gone" : found?.kind;
  throw new Failed(answer.status, found?.detail || found?.title || `The service has answered with ${answer.status}.`, kind);
}

export const get = async (path, query, signal) => (await call("GET", path, { query, signal })).found;

// Does some work, and again every so many seconds, or once; while the service is away, tries again. Whoever looks
// elsewhere has it wait.
export function watch(work, { every = 0, signal, gone, failed }) {
  let timer = null, misses = 0, busy = false, done = false;
  const visible = () => document.visibilityState === "visible";
  const later = (seconds) => {
    clearTimeout(timer);
    timer = visible() && !signal.aborted ? setTimeout(run, seconds * 1000) : null;
  };
  async function run() {
    if (busy || signal.aborted) return;
    if (!visible()) return;
    clearTimeout(timer);
    busy = true;
    try {
      await work(signal);
      if (misses) gone(null);
      misses = 0;
      done = !every;
      if (every) later(every);
    } catch (error) {
      if (signal.aborted) return;
      if (error.kind !== "gone") return failed(error);
      misses += 1;
      const wait = Math.min(MOST_WAIT_S, 2 ** (misses - 1));
      gone(error, wait, run);
      later(wait);
    } finally {
      busy = false;
    }
  }
  document.addEventListener("visibilitychange", () => (visible() ? done || run() : clearTimeout(timer)), { signal });
  run();
}
