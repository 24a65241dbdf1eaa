// The search of the site runs in a worker, which browsers refuse to pages opened as files: a frame takes its place.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      this.loaded = new Promise((resolve) => script.addEventListener("load", resolve));
      this.postMessage = (data) =>
        this.loaded.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
      script.src = url;
      inner.document.body.append(script);
    }
  };
  window.Worker = window.IFrameWorker;
}
