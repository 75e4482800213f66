// The view of neurons: one query against its keys: q, k, their elementwise product, the sum, and the weight it becomes.
'use strict';
function cellsIn(values, most) {
  const scale = most || 1e-9;
  return make('div', { class: 'cells', 'aria-hidden': true }, ...[...values].map((v) => {
    const [r, g, b] = shade(Math.tanh(2 * v / scale), true);
    return make('i', { style: `background: rgb(${r}, ${g}, ${b})`, title: v.toFixed(3) });
  }));
}
const largestOf = (values) => values.reduce((m, v) => Math.max(m, Math.abs(v)), 0);

function drawNeurons(part, at) {
  const q = vectorsOf(part, state.layer, 'q'), k = vectorsOf(part, state.layer, 'k'), d = part.dim;
  drawSide(part, [state.head]);
  if (!q || !k) { fill(at, make('p', {}, say('no_vectors'))); return; }
  const n = part.queries.t.length, m = part.keys.t.length, i = Math.min(n - 1, state.pair ? state.pair[0] : 0);
  const query = q.subarray((state.head * n + i) * d, (state.head * n + i + 1) * d), raw = headsOf(part, state.layer)[state.head];
  const keyOf = (j) => k.subarray((state.head * m + j) * d, (state.head * m + j + 1) * d);
  const order = [];
  for (let e = raw.from[i]; e < raw.from[i + 1]; ++e) order.push([raw.keys[e], raw.weights[e]]);
  order.sort((a, b) => b[1] - a[1]);
  const pick = make('select', { 'aria-label': say('query'), id: 'query', onchange: (e) => look({ pair: [Number(e.target.value), 0] }) },
    ...part.queries.t.map((t, x) => make('option', { value: x, selected: x === i }, `${x} ${shorten(t, 30)}`)));
  const row = ([j, w]) => {
    const key = keyOf(j), product = key.map((v, c) => v * query[c]), sum = product.reduce((s, v) => s + v, 0);
    return make('tr', {}, make('td', { class: 'token', dir: 'auto' }, shorten(part.keys.t[j], 20)), make('td', { style: 'width: 34%' }, cellsIn(key, largestOf(key))),
      make('td', { style: 'width: 34%' }, cellsIn(product, largestOf(product))), make('td', { class: 'n' }, (sum / Math.sqrt(d)).toFixed(2)), make('td', { class: 'n' }, percent(w)));
  };
  fill(at, make('div', { class: 'tools' }, make('label', {}, say('query'), pick)), cellsIn(query, largestOf(query)),
    make('table', { class: 'neurons' }, make('thead', {}, make('tr', {}, ...[say('key'), 'k', say('product'), say('sum') + ' / √d', say('weight')].map((t) => make('th', {}, t)))),
      make('tbody', {}, ...order.slice(0, 40).map(row))));
}
