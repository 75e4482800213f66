// Beside the picture: how exact it is, the row and the column that are held, sums over diagonals and columns.
'use strict';
let lines = null, sums = null, progress = null;
const weightText = (w) => (w >= 0.001 ? percent(w) : w.toExponential(1));

/** Bins as bars over the width; heights by the logarithm from 1e-7 to 1. */
function barsOf(bins, label) {
  const c = make('canvas', { class: 'line', width: 600, height: 128, role: 'img', 'aria-label': label }), g = c.getContext('2d');
  g.fillStyle = isDark() ? '#4aa8e0' : '#0072b2';
  const each = 600 / bins.length;
  bins.forEach((w, n) => { const t = w > 0 ? Math.max(0, 1 + Math.log10(Math.min(1, w)) / 7) : 0; g.fillRect(n * each, 128 * (1 - t), Math.max(1, each), 128 * t); });
  return c;
}
function showBlock(block, exact) {
  const text = block === 1 ? say('single') : say('block', block), mark = document.getElementById('mark');
  if (mark && mark.dataset.now !== text + exact + language) {
    mark.dataset.now = text + exact + language;
    fill(mark, make('span', { class: `mark ${exact}` }, say(exact)), ' ', text);
  }
}
function drawState() {
  const done = progress && progress.exact;
  fill(document.getElementById('state'), make('p', { id: 'mark' }),
    progress ? make('p', { class: 'small', id: 'progress', 'data-exact': done ? 1 : 0 }, done ? say('built', progress.seconds.toFixed(1)) : say('building', progress.done, progress.bands, progress.seconds.toFixed(0))) : null,
    progress && !done ? make('progress', { max: progress.bands, value: progress.done }) : null);
  redraw();
}
async function follow() {
  const { layer, head } = state;
  try { progress = await ask('open', { layer, head }); } catch { return; }
  if (layer !== state.layer || head !== state.head) return;
  ++round;
  drawState();
  if (!progress.exact) { setTimeout(follow, 500); return; }
  sums = await ask('sums', { layer, head });
  if (lines && lines.column && !lines.column.ready) hold(state.pair);
  drawSums();
}
function drawSums() {
  if (!sums || !sums.ready) { fill(document.getElementById('sums')); return; }
  fill(document.getElementById('sums'), make('h4', {}, say('distance')), barsOf(sums.distance, say('distance')),
    make('p', { class: 'small', id: 'near' }, sums.near.slice(0, 8).map((w, n) => `${n}: ${weightText(w)}`).join(' · ')),
    make('h4', {}, say('received')), barsOf(sums.keys.map((w) => w / Math.max(...sums.keys, 1e-9)), say('received')));
}
const topOf = (line, isRow) => make('ul', {}, ...line.top.slice(0, 10).map(([place, w, text]) => make('li', {}, make('button', { type: 'button', class: 'token', dir: 'auto',
  onclick: () => { const pair = isRow ? [state.pair[0], place] : [place, state.pair[1]]; goTo(...pair); hold(pair); } }, shorten(text, 30)), make('span', {}, ` ${place} · ${weightText(w)}`))));
async function hold(pair) {
  state.pair = pair;
  moved();
  if (!pair) { lines = null; drawLines(); return; }
  const { layer, head } = state, [row, column] = pair;
  const [weight, r, c] = await Promise.all([ask('numbers', { layer, head, row, column, rows: 1, columns: 1 }), ask('line', { layer, head, row }), ask('line', { layer, head, column })]);
  if (state.pair !== pair) return;
  lines = { weight: new Float32Array(weight)[0], row: r, column: c };
  drawLines();
}
function drawLines() {
  const at = document.getElementById('held');
  if (!lines || !state.pair) { fill(at, make('p', { class: 'small' }, say('rest'))); return; }
  fill(at, make('h3', {}, say('held', ...state.pair)), make('p', {}, make('b', { class: 'token', dir: 'auto' }, labelOf('queries', state.pair[0])), ' → ',
    make('b', { class: 'token', dir: 'auto' }, labelOf('keys', state.pair[1])), ': ', make('span', { id: 'value' }, lines.weight.toPrecision(4))),
  make('h4', {}, say('row')), barsOf(lines.row.bins, say('row')), topOf(lines.row, true), make('h4', {}, say('column')),
  ...(lines.column.ready ? [barsOf(lines.column.bins, say('column')), topOf(lines.column, false)] : [make('p', { class: 'small' }, say('waiting'))]));
}
