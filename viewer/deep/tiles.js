// Tiles of 256 x 256 cells: asked for when they come in sight, kept while there is room, drawn as small canvases.
'use strict';
const kTile = 256, kKept = 240, kAtOnce = 3;
const tiles = new Map();  // name: { state, max, mean, picture }
const asked = [];
let running = 0, colours = null;
/** Code 0 is none, 1 to 255 are 2^-24 to 1. */
const weightOf = (code) => (code ? 2 ** (24 * ((code - 1) / 254 - 1)) : 0);

/** 256 colours, from the page's own ground to its darkest; equal steps of the logarithm from 2^-20. */
function colourTable() {
  const dark = isDark(), table = new Uint32Array(256), view = new DataView(table.buffer);
  const stops = dark ? [[16, 21, 29], [40, 70, 140], [214, 104, 60], [255, 232, 170]] : [[255, 255, 255], [158, 200, 230], [30, 90, 170], [70, 10, 60]];
  for (let c = 0; c < 256; ++c) {
    const t = 3 * Math.max(0, (c - 43) / 212), n = Math.min(2, Math.floor(t)), f = t - n;
    for (let k = 0; k < 3; ++k) view.setUint8(4 * c + k, Math.round(stops[n][k] * (1 - f) + stops[n + 1][k] * f));
    view.setUint8(4 * c + 3, 255);
  }
  return table;
}
function picturedTile(tile) {
  if (tile.picture && tile.shown === state.show + isDark()) return tile.picture;
  colours ||= colourTable();
  tile.picture ||= make('canvas', { width: kTile, height: kTile });
  const g = tile.picture.getContext('2d'), image = g.createImageData(kTile, kTile), to = new Uint32Array(image.data.buffer), from = tile[state.show];
  for (let i = 0; i < from.length; ++i) to[i] = colours[from[i]];
  g.putImageData(image, 0, 0);
  tile.shown = state.show + isDark();
  return tile.picture;
}
const nameOf = (block, row, column) => `${state.layer}.${state.head}.${block}.${row}.${column}`;

/** The tile as it is known now; asked for where it is not, or was sampled and may be exact by now. */
function tileAt(block, row, column, wanted) {
  const name = nameOf(block, row, column), tile = tiles.get(name);
  if (tile) { tiles.delete(name); tiles.set(name, tile); }
  const stale = !tile || (tile.state !== 1 && tile.round !== round);
  if (wanted && stale && !(tile && tile.asked)) {
    const fresh = tile || { state: 0 };
    fresh.asked = true;
    if (!tile) tiles.set(name, fresh);
    asked.push({ name, tile: fresh, body: { layer: state.layer, head: state.head, block, row, column } });
    fetchSome();
  }
  return tile && tile.max ? tile : null;
}
let round = 0;  // grows while bands become exact: what was sampled is asked for again
function fetchSome() {
  while (asked.length > 60) { const a = asked.shift(); a.tile.asked = false; if (!a.tile.max) tiles.delete(a.name); }
  while (running < kAtOnce && asked.length) {
    const a = asked.pop();
    ++running;
    ask('tile', a.body).then((buffer) => {
      const bytes = new Uint8Array(buffer);
      Object.assign(a.tile, { state: bytes[0], round, shown: '' });
      if (bytes[0]) Object.assign(a.tile, { max: bytes.subarray(1, 1 + kTile * kTile), mean: bytes.subarray(1 + kTile * kTile) });
    }, () => {}).finally(() => {
      a.tile.asked = false;
      --running;
      for (const name of tiles.keys()) { if (tiles.size <= kKept) break; if (!tiles.get(name).asked) tiles.delete(name); }
      fetchSome();
      redraw();
    });
  }
}
