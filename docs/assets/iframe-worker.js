// Search without a server. Browsers refuse to start a Worker from a file on disk, so here the worker's
// script runs in a hidden frame of the page. Used only if the page was opened from a disk.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      const inner = frame.contentDocument
      inner.open()
      inner.write("<!doctype html><body>")
      inner.close()
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.loaded = new Promise((resolve, reject) => {
        const script = inner.createElement("script")
        script.onload = resolve
        script.onerror = () => reject(new Error(`cannot load ${url}`))
        script.src = url
        inner.body.append(script)
      })
    }
    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
