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
/** How edges are chosen, and how far. */
function filterControls() {
  const slider = { strong: [1, 20, 1], least: [0.01, 0.9, 0.01], top: [1, 16, 1], mass: [0.1, 1, 0.05] }[state.mode], whole = state.mode === 'top' || state.mode === 'strong';
  return [select('mode', say('filter'), ['strong', 'mass', 'least', 'top', 'none'].map((m) => option(m, say(m), state.mode)), (v) => look({ mode: v })),
    slider ? make('label', {}, make('input', { type: 'range', id: 'slider', min: slider[0], max: slider[1], step: slider[2], value: state[state.mode], 'aria-label': say(state.mode),
      onchange: (e) => look({ [state.mode]: Number(e.target.value) }) }), make('output', {}, whole ? String(state[state.mode]) : percent(state[state.mode]))) : null];
}
/** The heads of the layer, on or off; a double click leaves one alone. */
function headChips() {
  const on = new Set(headsOn());
  return [make('label', {}, say('head_chips')), ...headsThere().map((h) => make('button', {
    class: 'chip', type: 'button', 'aria-pressed': on.has(h), style: `--c:${colourOf(h)}`,
    onclick: () => { if (on.size > 1 || !on.has(h)) { if (!on.delete(h)) on.add(h); look({ on: [...on].sort((a, b) => a - b) }); } },
    ondblclick: () => look({ on: on.size === 1 && on.has(h) ? null : [h] }),
  }, make('i'), chipName(h))), make('button', { class: 'chip', type: 'button', id: 'all-heads', onclick: () => look({ on: null }) }, say('all'))];
}
