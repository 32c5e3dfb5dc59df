// What the page shows of an answer of the API: pictures with boxes and overlays, tables, a chart.

export const $ = (id) => document.getElementById(id);
export const state = { image: null, shown: {} }; // {file, name, picture, width, height}; answers by view
const LARGEST = 40e6; // pixels of a canvas; a picture of more is drawn smaller

export const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const rgb = (colour) => `rgb(${colour ?? [128, 128, 128]})`;
const percent = (value) => `${(100 * value).toFixed(1)} %`;
export async function decode(base64) {
  const picture = new Image();
  picture.src = `data:image/png;base64,${base64}`;
  await picture.decode();
  return picture;
}

// The image with what was found over it, at least `least` px wide or high.
export function paint(canvas, result, { most = LARGEST, least = 960, labels = true } = {}) {
  const enlarged = Math.max(1, least / Math.max(state.image.width, state.image.height)); // room for the labels
  const scale = Math.min(enlarged, Math.sqrt(most / (state.image.width * state.image.height)));
  canvas.width = Math.max(1, Math.round(state.image.width * scale));
  canvas.height = Math.max(1, Math.round(state.image.height * scale));
  const context = canvas.getContext('2d');
  context.drawImage(state.image.picture, 0, 0, canvas.width, canvas.height);
  if (result.overlay) {
    context.imageSmoothingEnabled = false;
    context.drawImage(result.decoded, 0, 0, canvas.width, canvas.height);
  }
  const line = Math.max(1.5, Math.max(canvas.width, canvas.height) / (labels ? 400 : 150));
  const letters = 5.5 * line;
  context.font = `${letters}px system-ui, sans-serif`;
  context.textBaseline = 'top';
  for (const one of [...(result.boxes ?? [])].reverse()) { // the best last, on top
    const [x1, y1, x2, y2] = one.box.map((value) => value * scale);
    context.strokeStyle = context.fillStyle = rgb(one.colour);
    context.lineWidth = line;
    context.strokeRect(x1, y1, x2 - x1, y2 - y1);
    if (!labels) continue;
    const text = `${one.name} ${one.score.toFixed(2)}`;
    const top = y1 >= 1.3 * letters ? y1 - 1.3 * letters : y2;
    context.fillRect(x1 - line / 2, top, context.measureText(text).width + line * 2, 1.3 * letters);
    const [r, g, b] = one.colour;
    context.fillStyle = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? '#000' : '#fff';
    context.fillText(text, x1 + line / 2, top + 0.15 * letters);
  }
  return scale;
}

function facts(place, pairs) {
  place.replaceChildren(...pairs.filter(([, text]) => text).map(([name, text]) => element('span', {}, element('b', {}, `${name}: `), text)));
}
const swatch = (colour) => {
  const made = element('span', { class: 'swatch' });
  made.style.background = rgb(colour);
  return made;
};
function table(place, head, rows) {
  const line = (cells, kind) => element('tr', {}, ...cells.map((cell) => element(kind, kind === 'th' ? { scope: 'col' } : {}, ...[cell].flat())));
  place.replaceChildren(element('table', {}, element('thead', {}, line(head, 'th')), element('tbody', {}, ...rows.map((row) => line(row, 'td')))));
}
const grids = (result) => result.grids.map(([rows, columns]) => `${columns} x ${rows}`).join(', ');

export function drawPrediction(result) {
  const started = performance.now();
  const scale = paint($('picture'), result);
  const drawn = (performance.now() - started) / 1000 + result.seconds.draw;
  state.shown.predict = result;
  const { read, forward } = result.seconds;
  const classes = result.classes;
  const found = result.boxes ? `${result.boxes.length} boxes` : classes.map((one) => one.name).join(', ');
  $('picture').setAttribute('aria-label', `${state.image.name}: ${found}`);
  facts($('facts'), [
    ['Image', `${result.width} x ${result.height} px${scale < 1 ? `, drawn at ${$('picture').width} x ${$('picture').height} px` : ''}`],
    ['Seen by the model', `${result.seen[0]} x ${result.seen[1]} px`],
    ['Tiles', result.tiles ? String(result.tiles) : 'none'],
    ['Grid of tokens', grids(result)],
    ['Time', `read ${read.toFixed(3)} s, forward ${forward.toFixed(3)} s, draw ${drawn.toFixed(3)} s`],
    ['Note', result.note],
  ]);
  const amount = (one) => (one.count !== undefined ? String(one.count) : one.share !== undefined ? percent(one.share) : one.score.toFixed(3));
  $('legend').replaceChildren(...classes.map((one) => element('span', {}, ...(one.colour ? [swatch(one.colour)] : []), `${one.name}: ${amount(one)}`)));
  if (result.boxes) {
    const rows = result.boxes.map((one) => [[swatch(one.colour), one.name], one.score.toFixed(3), ...one.box.map((value) => value.toFixed(1))]);
    table($('table'), ['class', 'score', 'x1', 'y1', 'x2', 'y2'], rows);
  } else if (result.task === 'segmentation') {
    table($('table'), ['class', 'pixels', 'share'], classes.map((one) => [[swatch(one.colour), one.name], String(one.pixels), percent(one.share)]));
  } else {
    table($('table'), ['class', 'score'], classes.map((one) => [one.name, one.score.toFixed(3)]));
  }
  $('save-picture').disabled = false;
  $('save-coco').disabled = !result.coco;
  $('save-index').disabled = !(result.overlay && result.task === 'segmentation');
}

export function drawSizes(result) {
  state.shown.sizes = result;
  const figures = [];
  for (const one of result.sizes) {
    const canvas = element('canvas', { role: 'img' });
    paint(canvas, one, { most: 6e5, least: 600, labels: false });
    const found = one.boxes ? `${one.boxes.length} boxes` : one.classes.slice(0, 3).map((entry) => entry.name).join(', ');
    canvas.setAttribute('aria-label', `${state.image.name} seen at ${one.seen[0]} x ${one.seen[1]} px: ${found}`);
    const text = `${one.seen[0]} x ${one.seen[1]} px, ${grids(one)} tokens, ${one.seconds.forward.toFixed(2)} s: ${found}`;
    figures.push(element('figure', {}, canvas, element('figcaption', {}, text)));
  }
  $('panels').replaceChildren(...figures);
  const what = result.sizes[0].boxes ? 'score' : result.sizes[0].overlay ? 'share of the pixels' : 'score of the class';
  const head = ['object', ...result.sizes.map((one) => `${Math.max(...one.seen)} px`)];
  const value = (score) => (score === null ? '–' : score.toFixed(3));
  const rows = result.objects.map((one, i) => [[swatch(one.colour), `${one.name}${one.box ? ` ${i + 1}` : ''}`], ...one.scores.map(value)]);
  table($('followed'), head, rows);
  drawChart(result, what);
}

function drawChart(result, what) {
  const make = (name, attributes, ...children) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const sides = result.sizes.map((one) => Math.max(...one.seen));
  const low = Math.log(sides[0]);
  const x = (i) => 50 + (560 * (Math.log(sides[i]) - low)) / (Math.log(sides.at(-1)) - low || 1);
  const y = (score) => 200 - 180 * score;
  const chart = make('svg', { viewBox: '0 0 640 240', role: 'img', 'aria-label': `${what} of each object at five sizes; the table has the numbers` });
  for (const level of [0, 0.5, 1]) {
    chart.append(make('line', { x1: 50, x2: 620, y1: y(level), y2: y(level), stroke: '#8888', 'stroke-width': 1 }));
    chart.append(make('text', { x: 42, y: y(level) + 4, 'text-anchor': 'end' }, level.toFixed(1)));
  }
  sides.forEach((one, i) => chart.append(make('text', { x: x(i), y: 218, 'text-anchor': 'middle' }, `${one} px`)));
  chart.append(make('text', { x: 50, y: 236 }, `longer side that the model sees; upwards: ${what}`));
  for (const one of result.objects) {
    const points = one.scores.map((score, i) => (score === null ? null : [x(i), y(score)])).filter(Boolean);
    chart.append(make('polyline', { points: points.join(' '), fill: 'none', stroke: rgb(one.colour), 'stroke-width': 1.5, opacity: 0.7 }));
    for (const [cx, cy] of points) chart.append(make('circle', { cx, cy, r: 2.5, fill: rgb(one.colour) }));
  }
  $('chart').replaceChildren(chart);
}

export function drawAttention() {
  const result = state.shown.explain;
  const canvas = $('attended');
  if (!result) return;
  const chosen = $('head').value;
  if ($('head').options.length !== result.heads.length + 1) {
    $('head').replaceChildren(element('option', { value: '' }, 'mean of all'), ...result.heads.map((_, i) => element('option', { value: i }, String(i))));
    $('head').value = chosen < result.heads.length ? chosen : '';
  }
  [$('layer').min, $('layer').max] = [-result.layers, result.layers - 1];
  const heads = $('head').value === '' ? result.heads : [result.heads[$('head').value]];
  const map = result.heads[0].map((row, r) => row.map((_, c) => heads.reduce((sum, head) => sum + head[r][c], 0) / heads.length));
  const top = Math.max(...map.flat(), 1e-12);
  paint(canvas, {}, { most: 4e6 });
  const context = canvas.getContext('2d');
  const [sx, sy] = [canvas.width / result.seen[0], canvas.height / result.seen[1]];
  context.fillStyle = 'rgb(0 0 0 / 0.45)';
  context.fillRect(0, 0, canvas.width, canvas.height);
  map.forEach((row, r) => row.forEach((weight, c) => {
    context.fillStyle = `rgb(255 ${Math.round(90 + (165 * weight) / top)} 40 / ${0.85 * (weight / top)})`;
    context.fillRect(c * result.cell * sx, r * result.cell * sy, result.cell * sx, result.cell * sy);
  }));
  const at = [((Number($('x').value) + 0.5) * canvas.width) / state.image.width, ((Number($('y').value) + 0.5) * canvas.height) / state.image.height];
  const arm = Math.max(canvas.width, canvas.height) / 40;
  for (const [colour, width] of [['#000', arm / 3], ['#4ff', arm / 8]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(at[0] - arm, at[1]);
    context.lineTo(at[0] + arm, at[1]);
    context.moveTo(at[0], at[1] - arm);
    context.lineTo(at[0], at[1] + arm);
    context.stroke();
  }
  canvas.setAttribute('aria-label', `Attention of ${result.layer} from ${$('x').value}, ${$('y').value}`);
  facts($('attention-facts'), [
    ['Layer', `${result.layer} (${result.layers} in all)`],
    ['Seen by the backbone', `${result.seen[0]} x ${result.seen[1]} px`],
    ['Grid of tokens', `${result.grid[1]} x ${result.grid[0]}; keys ${result.key_grid[1]} x ${result.key_grid[0]}`],
    ['Largest weight', top.toFixed(4)],
  ]);
}

export function drawFeatures(result) {
  const figures = [];
  for (const [i, level] of result.levels.entries()) {
    const picture = level.decoded;
    const [width, height] = result.seen;
    const canvas = element('canvas', { role: 'img', width, height, 'aria-label': `Features of level ${i}` });
    const context = canvas.getContext('2d');
    context.imageSmoothingEnabled = false;
    context.drawImage(picture, 0, 0, picture.width * level.cell, picture.height * level.cell);
    const text = `level ${i}: ${level.channels} channels, grid ${level.grid[1]} x ${level.grid[0]}, stride ${level.cell}`;
    figures.push(element('figure', {}, canvas, element('figcaption', {}, text)));
  }
  $('levels').replaceChildren(...figures);
}
