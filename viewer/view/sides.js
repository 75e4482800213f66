// Beside the picture: what leaves and reaches the token that is picked, or the strongest of all.
'use strict';
const itemOf = (name, head, w) => make('li', { style: `--c:${colourOf(head)}` }, make('i'), make('b', { class: 'token', dir: 'auto' }, shorten(name, 40)),
  make('span', {}, `${headName(head)} · ${percent(w)}`));

function listOf(edges, name, most) {
  const shown = edges.slice(-most).reverse();
  return shown.length ? make('ul', {}, ...shown.map((e) => itemOf(name(e), e.head, e.w))) : make('p', { class: 'small' }, say('nothing_above'));
}

/** Weights of 1 % and more at the picked token, or everywhere, the strongest last. */
function edgesAt(part, heads, token) {
  const all = [];
  for (const head of heads) {
    const shown = rowsOf(part, state.layer, head), [side, at] = token || [], only = token && side === 'q' && !part.square;
    for (let i = only ? at : 0; i < (only ? at + 1 : shown.q.count); ++i)
      for (let e = shown.from[i]; e < shown.from[i + 1]; ++e)
        if (shown.weights[e] >= 0.01 && (!token || i === at || shown.keys[e] === at)) all.push({ head, i, j: shown.keys[e], w: shown.weights[e] });
  }
  return all.sort((a, b) => a.w - b.w);
}

function drawSide(part, heads) {
  const side = document.getElementById('side');
  const q = sideOf(part.queries, state.words), k = sideOf(part.keys, state.words), all = edgesAt(part, heads, state.token);
  if (!state.token) {
    fill(side, make('h3', {}, say('pick')), make('p', { class: 'small' }, say('pick_text')), make('h4', {}, say('strongest')),
      listOf(all, (e) => `${q.texts[e.i]} → ${k.texts[e.j]}`, 14));
    return;
  }
  const [where, at] = state.token, texts = where === 'q' ? q.texts : k.texts;
  const rest = heads.length ? heads.reduce((sum, h) => sum + (rowsOf(part, state.layer, h).rest[at] || 0), 0) / heads.length : 0;
  const blocks = [make('h3', { class: 'token', dir: 'auto' }, `“${shorten(texts[at] || '', 60)}”`)];
  if (where === 'q' || part.square) blocks.push(make('h4', {}, say('leaves')), listOf(all.filter((e) => e.i === at), (e) => k.texts[e.j], 12),
    make('p', { class: 'small' }, `${say('left_out')}: ${percent(rest)}`));
  if (where === 'k' || part.square) blocks.push(make('h4', {}, say('reaches')), listOf(all.filter((e) => e.j === at), (e) => q.texts[e.i], 12));
  fill(side, ...blocks);
}
