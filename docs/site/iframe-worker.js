// Browsers start no worker for a page that is opened as a file. There, search runs in a hidden frame instead.
if (location.protocol === 'file:') {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent('message', { data }))
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement('script')
        script.src = url
        script.onload = () => resolve(inside)
        inside.document.head.append(script)
      })
    }
    async postMessage(data) {
      const inside = await this.ready
      inside.dispatchEvent(new inside.MessageEvent('message', { data }))
    }
    terminate() {}
  }
}
