// The picture: tiles of the size that fits the zoom, larger ones where they are not here yet, numbers when cells are wide.
'use strict';
const canvas = document.getElementById('map');
let about = null, asking = false, numbers = null;
const kNumber = 38, kLabel = 13, kMargin = 70;
const wide = () => canvas.clientWidth, tall = () => canvas.clientHeight;
const margin = () => (state.scale <= 1 / kLabel ? kMargin : 0);
/** Tokens that one point shows when everything is in sight. */
const wholeScale = () => Math.max(about.keys / wide(), about.queries / tall());
const blockOf = (scale) => { let b = 1; while (2 * b <= scale * 1.001 && b < about.block) b *= 2; return b; };

function clampBox() {
  const most = wholeScale() * 1.05;
  state.scale = Math.min(most, Math.max(1 / 64, state.scale));
  const space = (all, px) => [Math.min(0, (all - px * state.scale) / 2), Math.max(0, all - (px - margin()) * state.scale)];
  const [x0, x1] = space(about.keys, wide()), [y0, y1] = space(about.queries, tall());
  state.x = Math.min(x1 || x0, Math.max(x0, state.x));
  state.y = Math.min(y1 || y0, Math.max(y0, state.y));
}
function redraw() {
  if (asking || !about) return;
  asking = true;
  requestAnimationFrame(() => { asking = false; draw(); });
}
function draw() {
  const ratio = window.devicePixelRatio || 1, w = Math.round(wide() * ratio), h = Math.round(tall() * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  clampBox();
  const g = canvas.getContext('2d', { alpha: false }), style = getComputedStyle(document.body);
  g.setTransform(1, 0, 0, 1, 0, 0);
  g.fillStyle = style.backgroundColor;
  g.fillRect(0, 0, w, h);
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.save();
  g.beginPath();
  g.rect(margin(), margin(), wide(), tall());
  g.clip();
  g.translate(margin(), margin());
  g.imageSmoothingEnabled = false;
  // The last cells of large blocks reach beyond the map.
  g.beginPath();
  g.rect(-state.x / state.scale, -state.y / state.scale, about.keys / state.scale, about.queries / state.scale);
  g.clip();
  const block = blockOf(state.scale);
  let sampled = false, all = true;
  // Coarse ones first, as a ground for those that are still on their way.
  for (const b of [...new Set([about.block, Math.min(about.block, 256), Math.min(about.block, 8 * block), Math.min(about.block, 2 * block), block])].sort((p, q) => q - p)) {
    const side = b * kTile, x1 = Math.min(about.keys, state.x + wide() * state.scale), y1 = Math.min(about.queries, state.y + tall() * state.scale);
    for (let row = Math.max(0, Math.floor(state.y / side)); row * side < y1; ++row)
      for (let column = Math.max(0, Math.floor(state.x / side)); column * side < x1; ++column) {
        const tile = tileAt(b, row, column, b === block || b >= 256);
        if (b === block) { all &&= !!tile; sampled ||= !tile || tile.state !== 1; }
        if (!tile) continue;
        const cells = (n, from) => Math.min(kTile, Math.ceil((n - from) / b)), cx = cells(about.keys, column * side), cy = cells(about.queries, row * side);
        g.drawImage(picturedTile(tile), 0, 0, cx, cy, (column * side - state.x) / state.scale, (row * side - state.y) / state.scale, cx * b / state.scale, cy * b / state.scale);
      }
  }
  drawHeld(g, style.color);
  if (1 / state.scale >= kNumber) drawNumbers(g);
  g.restore();
  if (margin()) drawLabels(g, style.color);
  canvas.dataset.block = block;
  canvas.dataset.state = all && !sampled ? 'exact' : 'sampled';
  showBlock(block, canvas.dataset.state);
}
function drawHeld(g, colour) {
  if (!state.pair) return;
  const cell = Math.max(1, 1 / state.scale), x = (state.pair[1] - state.x) / state.scale, y = (state.pair[0] - state.y) / state.scale;
  g.strokeStyle = isDark() ? '#ffc14d' : '#d55e00';
  g.lineWidth = 1;
  g.globalAlpha = 0.8;
  g.strokeRect(-9, y - 0.5, wide() + 20, cell + 1);
  g.strokeRect(x - 0.5, -9, cell + 1, tall() + 20);
  g.globalAlpha = 1;
}
/** Exact numbers of the cells in sight; asked for once a place. */
function drawNumbers(g) {
  const row = Math.max(0, Math.floor(state.y)), column = Math.max(0, Math.floor(state.x));
  const rows = Math.min(about.queries - row, Math.ceil(tall() * state.scale) + 1, 128), columns = Math.min(about.keys - column, Math.ceil(wide() * state.scale) + 1, 128);
  const name = [state.layer, state.head, row, column, rows, columns].join();
  if (!numbers || numbers.name !== name) {
    if (numbers && numbers.waits === name) return;
    numbers = { ...(numbers || {}), waits: name };
    ask('numbers', { layer: state.layer, head: state.head, row, column, rows, columns }).then((b) => { numbers = { name, weights: new Float32Array(b), row, column, rows, columns }; redraw(); }, () => {});
    return;
  }
  g.font = '11px ui-monospace, monospace';
  g.textAlign = 'center';
  g.textBaseline = 'middle';
  for (let i = 0; i < rows; ++i)
    for (let j = 0; j < columns; ++j) {
      const w = numbers.weights[i * columns + j];
      g.fillStyle = isDark() ? (w > 0.12 ? '#10151d' : '#e8edf4') : (w > 0.01 ? '#fff' : '#1c2430');
      g.fillText(w >= 0.0005 ? w.toFixed(3) : w > 0 ? w.toExponential(0) : '0', (column + j + 0.5 - state.x) / state.scale, (row + i + 0.5 - state.y) / state.scale);
    }
}
const labels = { queries: new Map(), keys: new Map(), asked: new Set() };
function labelOf(side, at) {
  const known = labels[side].get(at), from = Math.floor(at / 500) * 500, name = side + from;
  if (known === undefined && !labels.asked.has(name)) {
    labels.asked.add(name);
    ask('tokens', { side, from, count: 500 }).then((a) => { a.tokens.forEach((t, n) => labels[side].set(a.from + n, t)); redraw(); drawLines(); }, () => labels.asked.delete(name));
  }
  return known === undefined ? '' : known;
}
function drawLabels(g, colour) {
  const cell = 1 / state.scale;
  g.fillStyle = colour;
  g.font = `${Math.min(13, cell - 1)}px system-ui, sans-serif`;
  g.textBaseline = 'middle';
  g.textAlign = 'right';
  for (let i = Math.max(0, Math.floor(state.y)); i < Math.min(about.queries, state.y + tall() * state.scale); ++i) {
    const y = margin() + (i + 0.5 - state.y) / state.scale;
    if (y >= margin()) g.fillText(shorten(labelOf('queries', i), 10), margin() - 4, y, margin() - 6);
  }
  g.textAlign = 'left';
  for (let j = Math.max(0, Math.floor(state.x)); j < Math.min(about.keys, state.x + wide() * state.scale); ++j) {
    const x = margin() + (j + 0.5 - state.x) / state.scale;
    if (x < margin()) continue;
    g.save();
    g.translate(x, margin() - 4);
    g.rotate(-Math.PI / 2);
    g.fillText(shorten(labelOf('keys', j), 10), 0, 0, margin() - 6);
    g.restore();
  }
}
function zoomAt(px, py, factor) {
  const before = state.scale, m = margin(), x = state.x + (px - m) * before, y = state.y + (py - m) * before;
  state.scale = Math.min(wholeScale() * 1.05, Math.max(1 / 64, before * factor));
  state.x = x - (px - margin()) * state.scale;
  state.y = y - (py - margin()) * state.scale;
  moved();
}
function showAll() { state.scale = wholeScale(); state.x = (about.keys - wide() * state.scale) / 2; state.y = (about.queries - tall() * state.scale) / 2; moved(); }
function goTo(row, column) { state.x = column - wide() * state.scale / 2; state.y = row - tall() * state.scale / 2; moved(); }
(function watch() {
  let from = null, moves = 0;
  const placeOf = (e) => { const r = canvas.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  canvas.addEventListener('pointerdown', (e) => { from = [e.clientX, e.clientY]; moves = 0; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener('pointermove', (e) => {
    if (!from) return;
    moves += Math.abs(e.clientX - from[0]) + Math.abs(e.clientY - from[1]);
    state.x -= (e.clientX - from[0]) * state.scale;
    state.y -= (e.clientY - from[1]) * state.scale;
    from = [e.clientX, e.clientY];
    moved();
  });
  canvas.addEventListener('pointerup', (e) => {
    if (from && moves < 4) {
      const [px, py] = placeOf(e), row = Math.floor(state.y + (py - margin()) * state.scale), column = Math.floor(state.x + (px - margin()) * state.scale);
      if (row >= 0 && column >= 0 && row < about.queries && column < about.keys) hold([row, column]);
    }
    from = null;
  });
  canvas.addEventListener('wheel', (e) => { e.preventDefault(); zoomAt(...placeOf(e), 1.0015 ** e.deltaY); }, { passive: false });
  canvas.addEventListener('keydown', (e) => {
    const step = 60 * state.scale, go = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[e.key];
    if (go) { state.x += go[0]; state.y += go[1]; moved(); } else if (e.key === '+' || e.key === '=') zoomAt(wide() / 2, tall() / 2, 0.5);
    else if (e.key === '-') zoomAt(wide() / 2, tall() / 2, 2);
    else if (e.key === '0') showAll();
    else if (e.key === 'Escape') hold(null);
    else return;
    e.preventDefault();
  });
  window.addEventListener('resize', redraw);
  document.addEventListener('theme', () => { colours = null; redraw(); drawSums(); drawLines(); });
})();
