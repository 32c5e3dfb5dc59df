// The page: it sends the image with each request. docs.html describes the calls, draw.js draws the answers.

import { $, decode, drawAttention, drawFeatures, drawPrediction, drawSizes, element, paint, state } from './draw.js';

let about; // GET /api/models
let running = null; // AbortController of the request
let tab = 'predict';

const say = (text) => { $('status').textContent = text; };
const complain = (text) => { $('error').textContent = text; };

// --- requests

async function call(name, parameters) {
  running?.abort();
  const mine = (running = new AbortController());
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null));
  const headers = { Accept: 'application/x-ndjson', 'Content-Type': 'application/octet-stream' };
  $('stop').disabled = false;
  $('progress').hidden = false;
  $('progress').removeAttribute('value');
  try {
    const answer = await fetch(`/api/${name}?${query}`, { method: 'POST', body: state.image.file, headers, signal: mine.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    let last;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (text + part.value).split('\n');
      text = lines.pop();
      for (const line of lines) showState((last = JSON.parse(line)));
    }
    if (text) last = JSON.parse(text);
    if (!last?.result) throw new Error(last?.error ?? 'the server ended the connection');
    // Decoded here, so that drawing is done at once and never mixes two answers.
    for (const one of [last.result, ...(last.result.sizes ?? []), ...(last.result.levels ?? [])]) {
      const file = one.overlay ?? one.picture;
      if (file) one.decoded = await decode(file);
    }
    mine.signal.throwIfAborted();
    return last.result;
  } finally {
    if (running === mine) {
      running = null;
      $('stop').disabled = true;
      $('progress').hidden = true;
    }
  }
}

function showState(state) {
  const words = { waiting: 'Waiting for other requests', reading: 'Reading the image', loading: 'Loading the model' };
  if (!state.state) return;
  const part = state.parts ? `, ${state.part} of ${state.parts}` : '';
  if (state.parts) $('progress').value = state.part / state.parts;
  say(`${words[state.state] ?? { forward: 'Running the model', drawing: 'Drawing' }[state.state]}${part} ...`);
}

// One request at a time: a newer one ends the older.
async function attempt(work) {
  complain('');
  say('Sending the image ...');
  $('results').setAttribute('aria-busy', true);
  try {
    await work();
    say('Done.');
  } catch (error) {
    if (error.name === 'AbortError') {
      if (!running) say('Stopped.');
      return;
    }
    clear();
    say('');
    complain(`${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`);
  } finally {
    if (!running) $('results').removeAttribute('aria-busy');
  }
}

// Nothing is shown that does not belong to the image and the controls.
function clear() {
  state.shown = {};
  for (const id of ['facts', 'legend', 'table', 'panels', 'chart', 'followed', 'attention-facts', 'levels']) $(id).replaceChildren();
  for (const id of ['save-picture', 'save-coco', 'save-index']) $(id).disabled = true;
  for (const id of ['picture', 'attended']) {
    $(id).setAttribute('aria-label', state.image?.name ?? 'No image');
    state.image?.picture ? paint($(id), {}) : $(id).getContext('2d').clearRect(0, 0, $(id).width, $(id).height);
  }
}

const common = () => ({
  model: $('model').value,
  size: $('config').checked ? null : side(),
  score: $('score').value,
  tile: $('tile').value,
});

const views = {
  async predict() {
    drawPrediction(await call('predict', common()));
  },
  async sizes() {
    drawSizes(await call('sizes', common()));
  },
  async explain() {
    const chosen = { model: $('model').value, side: $('side').value };
    const point = { x: $('x').value || 0, y: $('y').value || 0, layer: $('layer').value || -1 };
    state.shown.explain = await call('attention', { ...chosen, ...point });
    drawAttention();
    if (state.shown.features) return;
    state.shown.features = await call('features', chosen);
    drawFeatures(state.shown.features);
  },
};

function run() {
  if (state.image) attempt(views[tab]);
}

// --- the image

async function open(file, name) {
  running?.abort();
  const picture = new Image();
  picture.src = URL.createObjectURL(file);
  complain('');
  say('Opening the image ...');
  if (state.image?.picture) URL.revokeObjectURL(state.image.picture.src);
  state.image = { file, name };
  try {
    if (file.size > about.max_bytes) throw new Error(`the file has ${file.size} bytes, more than ${about.max_bytes}`);
    let size;
    try {
      await picture.decode();
      size = [picture.naturalWidth, picture.naturalHeight];
    } catch { // a format that the browser does not read, or no image
      const upright = await call('upright', {});
      picture.src = upright.decoded.src;
      await picture.decode();
      size = [upright.width, upright.height];
    }
    if (state.image?.file !== file) return; // another was opened since
    state.image = { file, name, picture, width: size[0], height: size[1] };
  } catch (error) {
    if (error.name === 'AbortError' || state.image?.file !== file) return;
    state.image = null;
    clear();
    $('run').disabled = true;
    say('Choose another image.');
    complain(`${name}: ${error.message}.`);
    return;
  }
  $('run').disabled = false;
  [$('x').value, $('y').value] = [state.image.width >> 1, state.image.height >> 1];
  [$('x').max, $('y').max] = [state.image.width - 1, state.image.height - 1];
  showSize();
  clear();
  run();
}

// The slider is logarithmic, from the smallest side to four times the image's longer one.
function bounds() {
  const longer = state.image ? Math.max(state.image.width, state.image.height) : 640;
  return [about.smallest, Math.max(about.smallest, 4 * longer)];
}
function side() {
  const [low, high] = bounds();
  return Math.round(low * (high / low) ** ($('size').value / 1000));
}
function showSize() {
  $('size-shown').value = $('config').checked ? 'as tested' : `${side()} px`;
  $('size').setAttribute('aria-valuetext', $('size-shown').value);
  $('score-shown').value = Number($('score').value).toFixed(2);
}

// --- downloads

function save(blob, ending) {
  const link = element('a', { href: URL.createObjectURL(blob), download: `${state.image.name.replace(/\.[^.]*$/, '')}${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
$('save-picture').onclick = () => {
  const canvas = element('canvas');
  paint(canvas, state.shown.predict, { least: 0 });
  canvas.toBlob((blob) => save(blob, '_predicted.png'));
};
$('save-coco').onclick = () => {
  const coco = structuredClone(state.shown.predict.coco);
  coco.images[0].file_name = state.image.name;
  save(new Blob([JSON.stringify(coco)], { type: 'application/json' }), '_coco.json');
};
$('save-index').onclick = () => {
  const bytes = Uint8Array.from(atob(state.shown.predict.index ?? state.shown.predict.overlay), (letter) => letter.charCodeAt(0));
  save(new Blob([bytes], { type: 'image/png' }), '_classes.png');
};

// --- controls

function select(name) {
  tab = name;
  for (const one of Object.keys(views)) {
    $(one).hidden = one !== name;
    $(`tab-${one}`).setAttribute('aria-selected', one === name);
    $(`tab-${one}`).tabIndex = one === name ? 0 : -1;
    for (const part of document.querySelectorAll(`#controls .for-${one}`)) part.hidden = !part.classList.contains(`for-${name}`);
  }
  if (!state.shown[name]) run();
}
const names = Object.keys(views);
for (const [i, name] of names.entries()) {
  $(`tab-${name}`).onclick = () => select(name);
  $(`tab-${name}`).onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = names[(i + step + names.length) % names.length];
    select(next);
    $(`tab-${next}`).focus();
  };
}
const changed = () => {
  state.shown = {};
  run();
};
$('controls').onsubmit = (event) => {
  event.preventDefault();
  changed();
};
$('stop').onclick = () => {
  running?.abort();
  say('Stopped.');
};
$('size').oninput = () => {
  $('config').checked = false;
  showSize();
};
$('score').oninput = $('config').oninput = showSize;
for (const id of ['size', 'score', 'config', 'tile', 'side']) $(id).onchange = changed;
for (const id of ['x', 'y', 'layer']) $(id).onchange = run;
$('head').onchange = drawAttention;
$('model').onchange = () => {
  $('about').textContent = about.models.find((one) => one.name === $('model').value).about;
  changed();
};
$('file').onchange = () => $('file').files[0] && open($('file').files[0], $('file').files[0].name);

function move(x, y) {
  $('x').value = Math.min(Math.max(Math.floor(x), 0), state.image.width - 1);
  $('y').value = Math.min(Math.max(Math.floor(y), 0), state.image.height - 1);
  run();
}
$('attended').onclick = (event) => {
  const frame = $('attended').getBoundingClientRect();
  if (state.image) move(((event.clientX - frame.left) / frame.width) * state.image.width, ((event.clientY - frame.top) / frame.height) * state.image.height);
};
$('attended').onkeydown = (event) => {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!way || !state.shown.explain) return;
  event.preventDefault();
  const cell = (state.shown.explain.cell * state.image.width) / state.shown.explain.seen[0];
  move(Number($('x').value) + way[0] * cell, Number($('y').value) + way[1] * cell);
};

document.ondragover = (event) => {
  event.preventDefault();
  document.body.classList.add('over');
};
document.ondragleave = () => document.body.classList.remove('over');
document.ondrop = (event) => {
  event.preventDefault();
  document.body.classList.remove('over');
  const file = event.dataTransfer.files[0]; // an address that is dropped is not opened
  if (file) open(file, file.name);
};
document.onpaste = (event) => {
  const file = event.clipboardData.files[0];
  if (file) open(file, file.name);
};

about = await (await fetch('/api/models')).json();
$('model').replaceChildren(...about.models.map((one) => element('option', { value: one.name }, one.name)));
$('about').textContent = about.models[0].about;
$('side').replaceChildren(...about.sides.map((one) => element('option', { value: one }, `${one} px`)));
$('side').value = 512;
for (const one of about.examples) {
  const button = element('button', { type: 'button', title: one.about }, element('img', { src: `/examples/${one.name}`, alt: one.about }), element('span', {}, one.name));
  button.onclick = async () => {
    say('Opening the image ...');
    const file = await (await fetch(`/examples/${one.name}`)).blob();
    if (about.models.some((model) => model.name === one.model)) $('model').value = one.model;
    $('about').textContent = about.models.find((model) => model.name === $('model').value).about;
    open(file, `${one.name}.jpg`);
  };
  $('examples').append(button);
}
showSize();
document.body.dataset.ready = 'yes';
