// Over HTTP with fetch, in Node 20 or a browser:  node http_client.mjs http://127.0.0.1:8816 TOKEN
const [url, token] = process.argv.slice(2);

async function call(method, path, body, headers = {}) {
  headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).detail), { status: answer.status });
  return answer;
}

/** Notifications of a session, each once it has come; after a lost connection, or with a service that begins again, it goes on where it was. */
async function* follow(session, keys, last = "") {
  const query = new URLSearchParams([["session", session], ["guarantee", "at_least_once"], ...keys.map((key) => ["keys", key])]);
  for (;;) {
    try {
      const stream = await call("GET", `/notifications?${query}`, undefined, last ? { "Last-Event-ID": last } : {});
      let text = "";
      for await (const part of stream.body.pipeThrough(new TextDecoderStream())) {
        const events = (text += part).split("\n\n");
        text = events.pop();
        for (const event of events) {
          const field = (name) => event.match(new RegExp(`^${name}: (.*)$`, "m"))?.[1];
          if (field("event") === "error") throw new Error(JSON.parse(field("data")).message);
          if (field("id")) yield { ...JSON.parse(field("data")), after: (last = field("id")) };
        }
      }
    } catch (error) {
      // fetch and streams raise a TypeError if the connection is lost; a service that ends says 503
      if (!(error instanceof TypeError) && error.status !== 503) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

await call("PUT", "/subscriptions/7", { tags: ["cat"], where: "price < 10" });
console.log(await (await call("POST", "/match", { tags: ["cat", "fr"], attributes: { price: 9.5 } })).json());
const notifications = follow("phone", [7]);
const first = notifications.next(); // begins the session
while (!(await (await call("GET", "/sessions")).json()).sessions.some((each) => each.session === "phone"));
await call("POST", "/publish", { tags: ["cat"], attributes: { price: 1 }, payload: { text: "miaow" } });
const { value } = await first;
console.log(value.keys, value.payload);
await call("POST", "/acknowledge", { session: "phone", after: value.after });
process.exit();
