// The search splits words at hyphens, so that `swin-t` would find every word that begins with `t`. A letter or two behind a
// hyphen are left out of the question: `swin-t` asks for `swin`, and `resnet-50` for `resnet`.
{
  const ask = Worker.prototype.postMessage
  Worker.prototype.postMessage = function (message) {
    if (typeof message.data === 'string') message.data = message.data.replace(/(\w{3,})-\w{1,2}(?!\w)/g, '$1')
    return ask.call(this, message)
  }
}
