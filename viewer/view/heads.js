// The view of heads: curves from the token that looks to the one looked at, one colour a head, width = weight.
'use strict';
function tokenOf(side, at, x, y, wide, text) {
  const picked = state.token && state.token[0] === side && state.token[1] === at;
  const left = side === 'q';
  return make('g', {
    class: 'word' + (picked ? ' picked' : '') + (isFound(text) ? ' found' : ''), tabindex: 0, role: 'button', 'data-side': side, 'data-token': at, 'aria-label': text,
    onclick: () => look({ token: picked ? null : [side, at] }), onkeydown: (e) => keyOnToken(e, side, at),
    onpointerenter: () => fadeTo(side, at), onpointerleave: () => fadeTo(),
  }, make('rect', { x: left ? x - wide : x, y: y - 11, width: wide, height: 22, rx: 6 }),
  make('text', { x: left ? x - 8 : x + 8, y: y + 5, 'text-anchor': left ? 'end' : 'start' }, shorten(text, 26)));
}
function keyOnToken(e, side, at) {
  if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); e.stopPropagation(); e.currentTarget.dispatchEvent(new Event('click')); }
  const place = { ArrowDown: [side, at + 1], ArrowUp: [side, at - 1], ArrowRight: ['k', at], ArrowLeft: ['q', at] }[e.key];
  const other = place && document.querySelector(`.flow g[data-side="${place[0]}"][data-token="${place[1]}"]`);
  if (other) { e.preventDefault(); e.stopPropagation(); other.focus(); }
  if (e.key === 'Escape') look({ token: null });
}
/** Dims every curve that does not touch the token; without one, those that do not touch the picked token. */
function fadeTo(side, at) {
  const [s, t] = side ? [side, at] : state.token || [];
  for (const path of document.querySelectorAll('.flow path')) {
    const lit = s === undefined || Number(path.dataset[s]) === t;
    path.setAttribute('stroke-opacity', lit ? path.dataset.o : 0.04);
  }
}
function drawHeads(part, at) {
  const heads = headsOn(), edges = edgesOf(part, state.layer, heads), q = sideOf(part.queries, state.words), k = sideOf(part.keys, state.words);
  const narrow = at.clientWidth < 560, wide = narrow ? 104 : 190, width = narrow ? 360 : 860, row = 24, pad = 8;
  const left = wide + 4, right = width - wide - 4, height = Math.max(q.count, k.count) * row + 2 * pad, bend = (right - left) * 0.45;
  const y = (i) => pad + (i + 0.5) * row;
  const svg = make('svg', { class: 'flow', viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': say('picture', state.layer) });
  const curves = make('g', { 'aria-hidden': true });
  for (const c of edges) {
    const opacity = (0.25 + 0.65 * Math.min(1, c.w)).toFixed(2);
    curves.append(make('path', {
      d: `M${left},${y(c.i)} C${left + bend},${y(c.i)} ${right - bend},${y(c.j)} ${right},${y(c.j)}`, stroke: colourOf(c.head), 'stroke-dasharray': dashOf(c.head),
      'stroke-width': (0.5 + 5.5 * Math.min(1, c.w)).toFixed(2), 'stroke-opacity': opacity, 'data-o': opacity, 'data-q': c.i, 'data-k': c.j,
    }, make('title', {}, `${say('head')} ${c.head}: ${q.texts[c.i]} → ${k.texts[c.j]}, ${percent(c.w)}`)));
  }
  svg.append(curves);
  for (let i = 0; i < q.count; ++i) svg.append(tokenOf('q', i, left, y(i), wide, q.texts[i]));
  for (let j = 0; j < k.count; ++j) svg.append(tokenOf('k', j, right, y(j), wide, k.texts[j]));
  fill(at, svg);
  if (state.token) fadeTo();
  drawSide(part, heads);
}
