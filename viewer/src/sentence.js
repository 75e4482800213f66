// One sentence, all heads of a layer at once: curves from what looks to what is looked at, width = weight.
'use strict';
const stage = { sentence: null, layer: 0, on: new Set(), word: null, least: 0.1, special: false };
const sentences = () => report.gallery.concat(report.cases);
/** Heads of the layer whose weights this sentence has: [place in s.h, head]. */
const headsShown = (s) => s.h.map((h, n) => [n, h[1], h[0]]).filter(([, , layer]) => layer === stage.layer);
const isSpecial = (s, i) => s.s && s.s.includes(i);

function curvesOf(s) {
  const rows = [];
  for (const [n, head] of headsShown(s)) {
    if (!stage.on.has(head)) continue;
    for (let i = 0; i < s.t.length; ++i)
      for (let j = 0; j < s.t.length; ++j) {
        if (!stage.special && (isSpecial(s, i) || isSpecial(s, j))) continue;
        const w = weight(s, n, i, j);
        if (w >= stage.least) rows.push({ head, i, j, w });
      }
  }
  // The heaviest last, so that they lie on top; more than the eye can part are left out.
  return rows.sort((a, b) => a.w - b.w).slice(-3000);
}

function drawFlow(s) {
  const row = 28, pad = 10, width = 760, left = 180, right = width - 180, height = s.t.length * row + 2 * pad;
  const y = (i) => pad + (i + 0.5) * row;
  const svg = make('svg', { class: 'flow', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'attention of this layer, word by word; the lists beside it say the same' });
  for (const c of curvesOf(s)) {
    const picked = stage.word === null || stage.word === c.i || stage.word === c.j;
    const path = make('path', {
      d: `M${left + 8},${y(c.i)} C${left + 170},${y(c.i)} ${right - 170},${y(c.j)} ${right - 8},${y(c.j)}`, stroke: colourOf(c.head),
      'stroke-width': (0.6 + 7 * c.w).toFixed(2), 'stroke-opacity': picked ? 0.35 + 0.5 * c.w : 0.05, 'stroke-dasharray': dashOf(c.head),
    }, make('title', {}, `head ${c.head}: ${s.t[c.i]} → ${s.t[c.j]}, ${percent(c.w)}`));
    svg.append(path);
  }
  for (let i = 0; i < s.t.length; ++i)
    for (const side of [0, 1]) {
      const text = make('text', { x: side ? right + 2 : left - 2, y: y(i) + 5, 'text-anchor': side ? 'start' : 'end', direction: 'ltr' }, shorten(s.t[i], 24));
      const g = make('g', {
        class: 'word' + (stage.word === i ? ' picked' : '') + (!stage.special && isSpecial(s, i) ? ' dim' : ''), tabindex: side ? undefined : 0, role: side ? undefined : 'button', 'data-word': i,
        'aria-label': side ? undefined : s.t[i], onclick: () => pickWord(i), onkeydown: (e) => keyOnWord(e, i),
      }, make('rect', { x: side ? right - 6 : 4, y: y(i) - 13, width: left - 4, height: 26, rx: 6 }), text);
      svg.append(g);
    }
  return svg;
}

function keyOnWord(e, i) {
  if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); pickWord(i); }
  const next = { ArrowDown: i + 1, ArrowUp: i - 1 }[e.key];
  const word = next === undefined ? null : document.querySelector(`.flow g[data-word="${next}"][tabindex]`);
  if (word) { e.preventDefault(); word.focus(); }
  if (e.key === 'Escape') pickWord(null);
}
function pickWord(i) {
  stage.word = stage.word === i ? null : i;
  drawSentence();
  const word = i !== null && document.querySelector(`.flow g[data-word="${i}"][tabindex]`);
  if (word) word.focus({ preventScroll: true });
}

/** What leaves or reaches a word, the heaviest few of every head that is on. */
function listOf(s, i, leaving) {
  const items = [];
  for (const [n, head] of headsShown(s)) {
    if (!stage.on.has(head)) continue;
    const all = s.t.map((t, j) => ({ t, j, w: leaving ? weight(s, n, i, j) : weight(s, n, j, i) }));
    for (const c of all.filter((x) => stage.special || !isSpecial(s, x.j)).sort((a, b) => b.w - a.w).slice(0, 2))
      if (c.w >= 0.05) items.push({ ...c, head });
  }
  return items.sort((a, b) => b.w - a.w).slice(0, 10).map((c) => make('li', { style: `--c:${colourOf(c.head)}` }, make('i'),
    make('b', {}, shorten(c.t, 30)), make('span', {}, `head ${c.head}${roleOf(stage.layer, c.head, s) ? ', ' + roleOf(stage.layer, c.head, s) : ''} · ${percent(c.w)}`)));
}

function drawSide(s) {
  const side = document.getElementById('side');
  if (stage.word === null || stage.word >= s.t.length)
    return fill(side, make('h3', {}, 'Pick a word'), make('p', { class: 'small' }, 'What leaves it and what reaches it is listed here, by head and role. ' +
      'Left: the word that looks. Right: what it looks at.'));
  const none = () => make('p', { class: 'small' }, 'nothing above 5 %');
  const part = (list) => (list.length ? make('ul', {}, ...list) : none());
  return fill(side, make('h3', { class: 'say' }, `“${shorten(s.t[stage.word], 40)}”`), make('h4', {}, 'leaves it for'), part(listOf(s, stage.word, true)),
    make('h4', {}, 'reaches it from'), part(listOf(s, stage.word, false)));
}

function drawSentence() {
  const s = stage.sentence;
  if (!s) return;
  const layers = [...new Set(s.h.map((h) => h[0]))].sort((a, b) => a - b);
  if (!layers.includes(stage.layer)) stage.layer = layers[0];
  fill(document.getElementById('layers'), make('label', {}, 'Layer'), ...layers.map((l) =>
    make('button', { 'aria-pressed': l === stage.layer, onclick: () => { stage.layer = l; stage.on = new Set(headsShown(s).map((h) => h[1])); drawSentence(); } }, String(l))));
  fill(document.getElementById('chips'), make('label', {}, 'Heads'), ...headsShown(s).map(([, head]) => make('button', {
    class: 'chip', 'aria-pressed': stage.on.has(head), style: `--c:${colourOf(head)}`, title: 'click: on or off; double click: this one alone',
    onclick: () => { if (!stage.on.delete(head)) stage.on.add(head); drawSentence(); },
    ondblclick: () => { stage.on = stage.on.size === 1 && stage.on.has(head) ? new Set(headsShown(s).map((h) => h[1])) : new Set([head]); drawSentence(); },
  }, make('i'), `${head} ${roleOf(stage.layer, head, s)}`.trim())),
  make('button', { class: 'chip', onclick: () => { stage.on = new Set(headsShown(s).map((h) => h[1])); drawSentence(); } }, 'all'));
  fill(document.getElementById('flow'), drawFlow(s));
  drawSide(s);
}

function showSentence(index, heads) {
  stage.sentence = sentences()[index];
  stage.word = null;
  document.getElementById('pick').value = index;
  if (stage.sentence.h.length && !stage.sentence.h.some((h) => h[0] === stage.layer)) stage.layer = stage.sentence.h[0][0];
  stage.on = new Set(heads || headsShown(stage.sentence).map((h) => h[1]));
  drawSentence();
}
function showHeadAlone(layer, head) {
  stage.layer = layer;
  const s = stage.sentence;
  if (!s) return;
  const there = s.h.some((h) => h[0] === layer && h[1] === head);
  showSentence(there ? sentences().indexOf(s) : 0, [head]);
}

function startSentence() {
  const pick = document.getElementById('pick'), all = sentences();
  if (!all.length || !all.some((s) => s.h.length)) return;
  const group = (name, list, from) => list.length && pick.append(make('optgroup', { label: name }, ...list.map((s, i) =>
    make('option', { value: from + i }, shorten(s.x, 90) + (s.m ? ` (${s.m})` : '')))));
  group('Gallery', report.gallery, 0);
  group('Mistakes', report.cases, report.gallery.length);
  pick.addEventListener('change', () => showSentence(Number(pick.value)));
  const least = document.getElementById('least');
  least.addEventListener('input', () => { stage.least = Number(least.value); document.getElementById('least-text').textContent = percent(stage.least); drawSentence(); });
  document.getElementById('special').addEventListener('change', (e) => { stage.special = e.target.checked; drawSentence(); });
  document.addEventListener('theme', drawSentence);
  showSentence(0);
}
