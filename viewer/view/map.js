// The map of one head, or of the difference of two: pan, zoom down to single weights with their numbers, rows and columns.
'use strict';
const kMargin = 4;
const mapNow = { cells: null, box: null, shown: null, other: null, at: null, held: null };

const wholeBox = (shown) => [0, 0, shown.k.count, shown.q.count];
/** A box of the given span around a middle, kept inside the map. */
function boxOf(shown, x, y, wide, tall) {
  const w = Math.max(4, Math.min(wide, shown.k.count)), h = Math.max(4, Math.min(tall, shown.q.count));
  const x0 = Math.max(0, Math.min(shown.k.count - w, x - w / 2)), y0 = Math.max(0, Math.min(shown.q.count - h, y - h / 2));
  return [x0, y0, x0 + w, y0 + h];
}
function zoomBy(factor, x, y) {
  const [x0, y0, x1, y1] = mapNow.box, fx = (x - x0) / (x1 - x0), fy = (y - y0) / (y1 - y0);
  const w = (x1 - x0) * factor, h = (y1 - y0) * factor;
  look({ box: boxOf(mapNow.shown, x + (0.5 - fx) * w, y + (0.5 - fy) * h, w, h) });
}
function moveBy(dx, dy) {
  const [x0, y0, x1, y1] = mapNow.box;
  look({ box: boxOf(mapNow.shown, (x0 + x1) / 2 + dx, (y0 + y1) / 2 + dy, x1 - x0, y1 - y0) });
}

/** The weights seen, minus those of the other head where one is chosen. */
function seenCells(box, wide, tall) {
  const cells = cellsOf(mapNow.shown, box, wide, tall);
  if (mapNow.other) {
    const minus = cellsOf(mapNow.other, box, wide, tall);
    for (let c = 0; c < cells.length; ++c) cells[c] -= minus[c];
  }
  return cells;
}
const valueAt = (i, j) => weightAt(mapNow.shown, i, j) - (mapNow.other ? weightAt(mapNow.other, i, j) : 0);

/** Numbers where cells are wide enough, and the tokens along both edges. */
function writeNumbers(canvas, [x0, y0, x1, y1]) {
  const g = canvas.getContext('2d'), dx = canvas.width / (x1 - x0), dy = canvas.height / (y1 - y0), { q, k } = mapNow.shown;
  const ratio = canvas.width / canvas.clientWidth || 1;
  g.font = `${11 * ratio}px system-ui, sans-serif`;
  g.textAlign = 'center';
  g.textBaseline = 'middle';
  if (dx >= 34 * ratio && dy >= 15 * ratio)
    for (let i = Math.floor(y0); i < Math.min(q.count, y1); ++i)
      for (let j = Math.floor(x0); j < Math.min(k.count, x1); ++j) {
        const w = valueAt(i, j);
        if (Math.abs(w) < 5e-4) continue;
        g.fillStyle = toned(Math.abs(w)) > 0.55 !== isDark() ? '#fff' : '#111';
        g.fillText(w.toFixed(3).replace(/^(-?)0\./, '$1.'), (j + 0.5 - x0) * dx, (i + 0.5 - y0) * dy);
      }
  g.textAlign = 'left';
  const strip = 72 * ratio, rows = dy >= 13 * ratio, columns = dx >= 13 * ratio;
  g.fillStyle = isDark() ? 'rgba(19, 20, 24, .82)' : 'rgba(255, 255, 255, .82)';
  if (columns) g.fillRect(0, 0, canvas.width, strip);
  if (rows) g.fillRect(0, columns ? strip : 0, strip, canvas.height);
  g.fillStyle = isDark() ? '#ffd27a' : '#8a4b00';
  if (rows) for (let i = Math.floor(y0); i < Math.min(q.count, y1); ++i) g.fillText(shorten(q.texts[i], 11), kMargin, (i + 0.5 - y0) * dy);
  if (columns)
    for (let j = Math.floor(x0); j < Math.min(k.count, x1); ++j) {
      g.save();
      g.translate((j + 0.5 - x0) * dx, kMargin);
      g.rotate(Math.PI / 2);
      g.fillText(shorten(k.texts[j], 11), 0, 0);
      g.restore();
    }
}
function cross(canvas, [i, j], [x0, y0, x1, y1]) {
  const g = canvas.getContext('2d'), dx = canvas.width / (x1 - x0), dy = canvas.height / (y1 - y0);
  g.strokeStyle = '#e69f00';
  g.lineWidth = 2;
  g.strokeRect(0, (i - y0) * dy, canvas.width, Math.max(dy, 1));
  g.strokeRect((j - x0) * dx, 0, Math.max(dx, 1), canvas.height);
}

/** A curve of numbers as a small picture: a row, a column, or sums by distance. */
function lineOf(title, values, mark) {
  const wide = 288, tall = 64, top = Math.max(...values, 1e-9), n = values.length;
  const points = [...values].map((v, i) => `${((i + 0.5) / n * wide).toFixed(1)},${(tall - 2 - v / top * (tall - 6)).toFixed(1)}`);
  return make('div', {}, make('h4', {}, title), make('svg', { viewBox: `0 0 ${wide} ${tall}`, role: 'img', 'aria-label': `${title}: ${top.toFixed(3)}` },
    mark === undefined ? null : make('line', { class: 'axis', x1: (mark + 0.5) / n * wide, x2: (mark + 0.5) / n * wide, y1: 0, y2: tall }),
    make('path', { class: 'curve', d: 'M' + points.join('L') }), make('text', { x: wide, y: 10, 'text-anchor': 'end' }, top.toFixed(3))));
}
function rowValues(shown, i) {
  const out = new Float32Array(shown.k.count);
  for (let e = shown.from[i]; e < shown.from[i + 1]; ++e) out[shown.keys[e]] = shown.weights[e];
  return out;
}
function columnValues(shown, j) { return Float32Array.from({ length: shown.q.count }, (_, i) => weightAt(shown, i, j)); }
/** Mean weight by how far back the key stands, for the nearest 64. */
function byDistance(shown) {
  const n = Math.min(64, shown.k.count), out = new Float32Array(n), rows = new Float32Array(n);
  for (let i = 0; i < shown.q.count; ++i) {
    for (let d = 0; d < n; ++d) if (i - d >= 0) ++rows[d];
    for (let e = shown.from[i]; e < shown.from[i + 1]; ++e) { const d = i - shown.keys[e]; if (d >= 0 && d < n) out[d] += shown.weights[e]; }
  }
  return out.map((v, d) => (rows[d] ? v / rows[d] : 0));
}

function drawMapSide() {
  const { shown } = mapNow, at = mapNow.held || mapNow.at, side = document.getElementById('side'), figures = partNow().layers[state.layer].f[state.head];
  const blocks = [make('h3', {}, `${say('layer')} ${state.layer}, ${say('head')} ${state.head}`),
    make('p', { class: 'small' }, kFigures.map((f, n) => `${say(f)} ${figures[n].toFixed(2)}`).join(' · ')),
    mapNow.other ? make('p', { class: 'small', id: 'difference' }, `${say('difference')} ${differenceOf(shown, mapNow.other).toFixed(3)}: ${say('difference_text')}`) : null];
  if (at) {
    const [i, j] = at;
    blocks.push(make('p', {}, make('b', { class: 'token', dir: 'auto' }, shown.q.texts[i]), ' → ', make('b', { class: 'token', dir: 'auto' }, shown.k.texts[j]),
      make('span', { id: 'value' }, ` ${valueAt(i, j).toFixed(4)}`)), lineOf(`${say('row')} ${i}`, rowValues(shown, i), j), lineOf(`${say('column')} ${j}`, columnValues(shown, j), i));
  }
  blocks.push(lineOf(say('diagonal'), byDistance(shown)), make('p', { class: 'small' }, say('zoom')));
  fill(side, ...blocks);
}
function placeIn(canvas, e) {
  const r = canvas.getBoundingClientRect(), [x0, y0, x1, y1] = mapNow.box, { shown } = mapNow;
  const x = x0 + (e.clientX - r.left) / r.width * (x1 - x0), y = y0 + (e.clientY - r.top) / r.height * (y1 - y0);
  return { x, y, cell: [Math.max(0, Math.min(shown.q.count - 1, Math.floor(y))), Math.max(0, Math.min(shown.k.count - 1, Math.floor(x)))] };
}
function listenToMap(canvas) {
  let drag = null;
  canvas.addEventListener('wheel', (e) => { e.preventDefault(); const p = placeIn(canvas, e); zoomBy(e.deltaY > 0 ? 1.25 : 0.8, p.x, p.y); }, { passive: false });
  canvas.addEventListener('pointerdown', (e) => { drag = { x: e.clientX, y: e.clientY, moved: false }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener('pointermove', (e) => {
    if (drag && (drag.moved || Math.hypot(e.clientX - drag.x, e.clientY - drag.y) > 4)) {
      const [x0, y0, x1, y1] = mapNow.box;
      const dx = (drag.x - e.clientX) / canvas.clientWidth * (x1 - x0), dy = (drag.y - e.clientY) / canvas.clientHeight * (y1 - y0);
      drag = { x: e.clientX, y: e.clientY, moved: true };
      moveBy(dx, dy);
    } else if (!mapNow.held) { mapNow.at = placeIn(canvas, e).cell; drawMapSide(); }
  });
  canvas.addEventListener('pointerup', (e) => {
    if (drag && !drag.moved) { const { cell } = placeIn(canvas, e); look({ pair: mapNow.held && String(mapNow.held) === String(cell) ? null : cell }); }
    drag = null;
  });
  canvas.addEventListener('keydown', (e) => {
    const [x0, y0, x1, y1] = mapNow.box, step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (step) { e.preventDefault(); moveBy(step[0] * (x1 - x0) / 8, step[1] * (y1 - y0) / 8); }
    if (e.key === '+' || e.key === '=') zoomBy(0.7, (x0 + x1) / 2, (y0 + y1) / 2);
    if (e.key === '-') zoomBy(1.4, (x0 + x1) / 2, (y0 + y1) / 2);
    if (e.key === '0') look({ box: null });
    if (e.key === 'Escape') look({ pair: null });
  });
}
/** As large as the window has room for, in the shape of what is seen. */
function sizeOfMap(at, shape) {
  const most = Math.max(64, at.clientWidth - 34), high = Math.max(240, innerHeight * 0.76);
  const wide = Math.min(most, high / Math.min(Math.max(shape, 0.2), 5));
  return [wide, Math.max(48, wide * shape)];
}
function drawMap(part, at) {
  const shown = rowsOf(part, state.layer, state.head), minus = state.minus;
  const other = minus ? twinOf(part, minus[2] ?? state.part, minus[0], minus[1]) : null;
  Object.assign(mapNow, { shown, other, box: Array.isArray(state.box) ? state.box : wholeBox(shown) });
  mapNow.held = Array.isArray(state.pair) && state.pair[0] < shown.q.count && state.pair[1] < shown.k.count ? state.pair : null;
  let canvas = at.querySelector('canvas.big');
  if (!canvas) {
    canvas = make('canvas', { class: 'big', tabindex: 0, role: 'img' });
    fill(at, make('div', { class: 'maphold' }, canvas));
    listenToMap(canvas);
  }
  canvas.setAttribute('aria-label', `${say('map')}: ${say('layer')} ${state.layer}, ${say('head')} ${state.head}, ${say('tokens', shown.q.count)} × ${shown.k.count}`);
  const [x0, y0, x1, y1] = mapNow.box, [wide, tall] = sizeOfMap(at, (y1 - y0) / (x1 - x0)), ratio = Math.min(2, devicePixelRatio);
  canvas.style.width = `${wide}px`;
  paint(canvas, seenCells(mapNow.box, Math.round(wide * ratio), Math.round(tall * ratio)), Math.round(wide * ratio), Math.round(tall * ratio), !!other);
  writeNumbers(canvas, mapNow.box);
  if (mapNow.held) cross(canvas, mapNow.held, mapNow.box);
  drawMapSide();
}
