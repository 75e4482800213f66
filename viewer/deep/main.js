// The page of a long map: choices, the view in the address, and the first picture.
'use strict';
const kFresh = { layer: 0, head: 0, show: 'max', x: 0, y: 0, scale: 0, pair: null };
const state = { ...kFresh };

function readLink() {
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!(name in kFresh)) continue;
    try { const value = JSON.parse(text); if (typeof value === typeof kFresh[name] || name === 'pair') state[name] = value; } catch { if (name === 'show') state.show = text; }
  }
  const whole = (x, most) => (Number.isInteger(x) && x >= 0 && x < most ? x : 0);
  state.layer = whole(state.layer, about.layers.length);
  state.head = whole(state.head, about.heads);
  if (state.show !== 'mean') state.show = 'max';
  if (!Array.isArray(state.pair) || state.pair[0] !== whole(state.pair[0], about.queries) || state.pair[1] !== whole(state.pair[1], about.keys)) state.pair = null;
}
let writing = 0;
/** The view has changed: drawn in the next frame; the address follows when the hand rests. */
function moved() {
  redraw();
  clearTimeout(writing);
  writing = setTimeout(() => {
    const words = new URLSearchParams({ key });
    for (const name of Object.keys(kFresh)) if (state[name] !== kFresh[name]) words.set(name, typeof state[name] === 'number' ? String(Number(state[name].toPrecision(8))) : JSON.stringify(state[name]));
    history.replaceState(null, '', '#' + words);
  }, 200);
}
function choose(change) {
  Object.assign(state, change);
  if ('layer' in change || 'head' in change) { progress = sums = lines = null; numbers = null; drawSums(); follow(); if (state.pair) hold(state.pair); }
  moved();
}
function drawChoices() {
  fill(document.getElementById('choose'),
    select('layer', say('layer'), about.layers.map((l, n) => option(n, String(l), state.layer)), (v) => choose({ layer: Number(v) })),
    select('head', say('head'), range(about.heads).map((h) => option(h, String(h), state.head)), (v) => choose({ head: Number(v) })),
    select('show', say('show'), ['max', 'mean'].map((s) => option(s, say(s), state.show)), (v) => choose({ show: v })),
    make('input', { type: 'search', id: 'find', placeholder: say('find'), 'aria-label': say('find'), onchange: search }), make('span', { id: 'places', class: 'small' }),
    make('span', { class: 'gap' }), make('button', { type: 'button', id: 'png', onclick: () => canvas.toBlob((b) => saveAs(`map-layer${state.layer}-head${state.head}.png`, b)) }, say('png')),
    make('button', { type: 'button', id: 'csv', onclick: saveCsv }, say('csv')),
    make('button', { type: 'button', id: 'link', onclick: async (e) => { try { await navigator.clipboard.writeText(location.href); e.target.textContent = say('copied'); } catch { prompt(say('link'), location.href); } } }, say('link')));
  document.getElementById('name').textContent = about.name;
  document.getElementById('size').textContent = say('size', about.queries.toLocaleString(), about.keys.toLocaleString(), about.mask);
  document.getElementById('hint').textContent = say('rest');
  canvas.setAttribute('aria-label', say('picture', state.layer, state.head));
  drawState();
  drawLines();
  drawSums();
}
let found = { places: [], at: -1, text: '' };
async function search(e) {
  const text = e.target.value;
  if (text !== found.text) found = { ...(text ? await ask('find', { find: text }) : { places: [] }), at: -1, text };
  document.getElementById('places').textContent = say('places', found.places.length);
  if (!found.places.length) return;
  const place = found.places[found.at = (found.at + 1) % found.places.length];
  goTo(Math.min(place, about.queries - 1), place);
  hold([Math.min(place, about.queries - 1), place]);
}
function saveAs(name, blob) {
  const url = URL.createObjectURL(blob), a = make('a', { href: url, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
/** A cell that a spreadsheet reads as text, whatever the token says. */
const cellOf = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? "'" + text : text).replaceAll('"', '""')}"`;
/** What is held: the heaviest of its row and of its column. */
function csvText() {
  const rows = ['kind,query,key,token,weight'];
  if (lines && state.pair) {
    for (const [place, w, text] of lines.row.top) rows.push(['row', state.pair[0], place, cellOf(text), w].join());
    for (const [place, w, text] of lines.column.top || []) rows.push(['column', place, state.pair[1], cellOf(text), w].join());
  }
  return rows.join('\n') + '\n';
}
const saveCsv = () => saveAs(`map-layer${state.layer}-head${state.head}.csv`, new Blob([csvText()], { type: 'text/csv' }));

(async function start() {
  const wish = JSON.parse(document.getElementById('data').textContent).language || (navigator.language.startsWith('zh') ? 'zh' : 'en');
  const choice = document.getElementById('language');
  language = choice.value = wish;
  choice.addEventListener('change', () => { language = choice.value; document.documentElement.lang = language; drawChoices(); });
  try { about = await ask('about'); } catch { return; }
  readLink();
  drawChoices();
  if (state.scale <= 0) showAll();
  follow();
  if (state.pair) hold(state.pair);
})();
