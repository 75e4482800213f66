// Which weights are drawn: the strongest of all, those above a weight, the strongest of a row, the fewest that hold a share, or all.
'use strict';
function kept(shown, row) {
  const places = [...Array(shown.from[row + 1] - shown.from[row]).keys()].map((e) => e + shown.from[row]), w = shown.weights;
  if (state.mode === 'none' || state.mode === 'strong') return places;
  if (state.mode === 'least') return places.filter((e) => w[e] >= state.least);
  places.sort((a, b) => w[b] - w[a]);
  if (state.mode === 'top') return places.slice(0, state.top);
  const all = places.reduce((sum, e) => sum + w[e], 0);
  let sum = 0, n = 0;
  while (n < places.length && sum < state.mass * all) sum += w[places[n++]];
  return places.slice(0, n);
}
/** Edges of all heads that are on, the strongest last, so that they lie on top; more than the eye can part are left out. */
function edgesOf(part, layer, heads) {
  const most = state.mode === 'strong' ? Math.min(3000, state.strong * sideOf(part.queries, state.words).count) : 3000;
  const edges = [];
  for (const head of heads) {
    const shown = rowsOf(part, layer, head);
    for (let i = 0; i < shown.q.count; ++i) for (const e of kept(shown, i)) edges.push({ head, i, j: shown.keys[e], w: shown.weights[e] });
  }
  return edges.sort((a, b) => a.w - b.w).slice(-most);
}
const isFound = (text) => state.find !== '' && text.toLocaleLowerCase().includes(state.find.toLocaleLowerCase());
