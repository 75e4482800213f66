// The view of the model: every layer and head as a small picture; a click opens it.
'use strict';
const kFigures = ['entropy', 'largest', 'distance', 'first', 'self', 'previous', 'next'];
/** Colours of the map: white or black paper to the accent; differences from orange over paper to blue. */
function shade(value, signed) {
  const dark = isDark(), paper = dark ? [27, 29, 34] : [255, 255, 255];
  const ink = signed && value < 0 ? [213, 94, 0] : dark ? [125, 184, 239] : [8, 64, 129];
  const t = Math.min(1, Math.abs(value));
  return paper.map((p, c) => Math.round(p + (ink[c] - p) * t));
}
/** Where a weight stands on the scale of colours: a row's even share is at the middle of the logarithm. */
const toned = (w) => (state.log ? Math.max(0, 1 + Math.log10(Math.max(w, 1e-9)) / 4) : Math.sqrt(Math.min(1, w)));

/** The weights of a box [left, top, right, bottom] in so many pixels, the largest of each pixel. */
function cellsOf(shown, [x0, y0, x1, y1], wide, tall) {
  const cells = new Float32Array(wide * tall), dx = wide / (x1 - x0), dy = tall / (y1 - y0);
  for (let i = Math.max(0, Math.floor(y0)); i < Math.min(shown.q.count, Math.ceil(y1)); ++i) {
    const top = Math.max(0, Math.floor((i - y0) * dy)), bottom = Math.min(tall, Math.max(top + 1, Math.floor((i + 1 - y0) * dy)));
    for (let e = shown.from[i]; e < shown.from[i + 1]; ++e) {
      const j = shown.keys[e];
      if (j + 1 <= x0 || j >= x1) continue;
      const left = Math.max(0, Math.floor((j - x0) * dx)), right = Math.min(wide, Math.max(left + 1, Math.floor((j + 1 - x0) * dx)));
      for (let y = top; y < bottom; ++y)
        for (let x = left; x < right; ++x) if (shown.weights[e] > cells[y * wide + x]) cells[y * wide + x] = shown.weights[e];
    }
  }
  return cells;
}
/** The whole map as a small square, minus that of the same head of another part where one is chosen. */
function thumbOf(part, layer, head, size) {
  const shown = rowsOf(part, layer, head), box = [0, 0, shown.k.count, shown.q.count], cells = cellsOf(shown, box, size, size);
  if (state.against === null) return cells;
  const twin = twinOf(part, state.against, layer, head), minus = twin ? cellsOf(twin, box, size, size) : cells;
  return cells.map((c, n) => c - minus[n]);
}
/** 511 colours from -1 to 1, made once for a theme. */
function scaleOf(signed) {
  const id = `${isDark()} ${signed}`;
  if (scaleOf.id !== id) {
    scaleOf.colours = Uint32Array.from({ length: 511 }, (_, c) => { const [r, g, b] = shade((c - 255) / 255, signed); return (255 << 24) | (b << 16) | (g << 8) | r; });
    scaleOf.id = id;
  }
  return scaleOf.colours;
}
function paint(canvas, cells, wide, tall, signed) {
  canvas.width = wide;
  canvas.height = tall;
  const context = canvas.getContext('2d'), image = context.createImageData(wide, tall), pixels = new Uint32Array(image.data.buffer), colours = scaleOf(signed);
  for (let c = 0; c < cells.length; ++c)
    pixels[c] = colours[255 + Math.round(255 * Math.max(-1, Math.min(1, signed ? Math.sign(cells[c]) * toned(Math.abs(cells[c])) : toned(cells[c]))))];
  context.putImageData(image, 0, 0);
}

/** What a head is sorted by; undefined: by its place. */
function figureToSort(part, { layer, head, figures }) {
  if (state.sort !== 'difference') return figures[kFigures.indexOf(state.sort)];
  const twin = state.against === null ? null : twinOf(part, state.against, layer, head);
  return twin ? differenceOf(rowsOf(part, layer, head), twin) : 0;
}
/** [layer, head, figure]s by place, or by a figure, the largest first. */
function ordered(part) {
  const all = [];
  part.layers.forEach((l, layer) => { for (let h = 0; h < l.heads; ++h) all.push({ layer, head: h, figures: l.f[h] }); });
  for (const one of all) one.figure = figureToSort(part, one);
  if (state.sort !== 'place') all.sort((a, b) => b.figure - a.figure);
  return all;
}
function drawModel(part, at) {
  const widest = Math.max(...part.layers.map((l) => l.heads)), size = 56, against = state.against;
  const columns = Math.min(widest, at.clientWidth < 560 ? 4 : 16);
  const grid = make('div', { class: 'thumbs', style: `grid-template-columns: repeat(${columns}, minmax(0, 1fr))` });
  const waiting = [];
  for (const { layer, head, figure } of ordered(part)) {
    const canvas = make('canvas', { width: 1, height: 1 });
    waiting.push([canvas, layer, head]);
    grid.append(make('button', {
      class: 'thumb', type: 'button', 'aria-label': say('open', layer, head), 'data-layer': layer, 'data-head': head, 'aria-pressed': layer === state.layer && head === state.head,
      onclick: () => look({ view: 'map', layer, head, on: [head], box: null, minus: against === null ? state.minus : [layer, head, against] }),
    }, canvas, figure === undefined ? `${layer}·${head}` : `${layer}·${head} ${figure.toFixed(2)}`));
  }
  const apart = data.compare && !comparable(part).some((n) => n !== state.part);
  fill(at, apart ? make('p', { class: 'warn' }, say('apart')) : null, grid);
  const turn = drawModel.turn = {};  // a later drawing ends this one
  (function some() {
    const until = performance.now() + 16;
    while (waiting.length && performance.now() < until) {
      const [canvas, layer, head] = waiting.shift();
      paint(canvas, thumbOf(part, layer, head, size), size, size, against !== null);
    }
    if (waiting.length && drawModel.turn === turn) setTimeout(some, 0);
  })();
  drawSide(part, [state.head]);
}
