// The page: tabs, choices, filters, and the view that is open.
'use strict';
const kDraw = { heads: drawHeads, model: drawModel, map: drawMap, neurons: drawNeurons, generation: drawGeneration, circuit: drawCircuit };
/** Views of single tokens, which know no words. */
const fromSteps = () => state.view === 'generation' || state.view === 'circuit';

function drawTabs() {
  fill(document.getElementById('tabs'), ...viewsOf(partNow()).map((v) => make('button', { type: 'button', role: 'tab', id: `tab-${v}`, 'aria-selected': v === state.view,
    'aria-pressed': v === state.view, onclick: () => look({ view: v, head: state.on && state.on.length === 1 ? state.on[0] : state.head }) }, say(v))));
}
function drawChoices(part) {
  const layer = part.layers[state.layer], one = state.view === 'map' || state.view === 'neurons' || state.view === 'generation' || state.view === 'circuit', items = [];
  if (data.parts.length > 1)
    items.push(select('part', say('attention'), data.parts.map((p, n) => option(n, p.name, state.part)), (v) => look({ part: Number(v), layer: 0, head: 0, on: null, token: null, box: null, pair: null, minus: null, against: null })));
  if (state.view !== 'model')
    items.push(select('layer', say('layer'), range(part.layers.length).map((l) => option(l, String(l), state.layer)), (v) => {
      const to = Number(v);
      look({ layer: to, head: Math.min(state.head, part.layers[to].heads - 1), on: null });
    }));
  if (one) items.push(select('head', say('head'), range(layer.heads).map((h) => option(h, String(h), state.head)), (v) => look({ head: Number(v), on: [Number(v)] })));
  if (state.view === 'model')
    items.push(select('sort', say('sort'), ['place', ...kFigures, ...(state.against === null ? [] : ['difference'])].map((f) => option(f, say(f), state.sort)), (v) => look({ sort: v })));
  if (state.view === 'map') {
    const name = (n) => (data.parts.length > 1 ? shorten(data.parts[n].name, 24) + ' ' : '');
    const all = comparable(part).flatMap((n) => data.parts[n].layers.flatMap((l, layer) => range(l.heads).map((h) => [layer, h, n])));
    const now = state.minus ? [state.minus[0], state.minus[1], state.minus[2] ?? state.part].join() : '';
    items.push(select('minus', say('minus'), [option('', say('nothing'), now), ...all.map((p) => option(p.join(), `${name(p[2])}${p[0]}·${p[1]}`, now))],
      (v) => look({ minus: v ? v.split(',').map(Number) : null })));
  }
  if (state.view === 'model' && data.parts.length > 1) {
    const others = comparable(part).filter((n) => n !== state.part);
    items.push(select('against', say('minus'), [option('', say('nothing'), state.against ?? ''), ...others.map((n) => option(n, data.parts[n].name, state.against ?? ''))],
      (v) => look({ against: v === '' ? null : Number(v) })));
  }
  if (one && !fromSteps() || state.view === 'model') items.push(check('log', say('log'), state.log, (v) => look({ log: v })));
  fill(document.getElementById('choose'), ...items, make('span', { class: 'gap' }), ...exportButtons());
}
function drawFilters(part) {
  const items = state.view === 'heads' ? filterControls() : [];
  if (state.view !== 'circuit') items.push(check('sinks', say('sinks'), state.sinks, (v) => look({ sinks: v })));
  if ((part.queries.w.length || part.keys.w.length) && !fromSteps()) items.push(check('words', say('words'), state.words, (v) => look({ words: v, token: null, box: null, pair: null })));
  if (part.layers[state.layer].n && !fromSteps()) items.push(check('values', say('values'), state.values, (v) => look({ values: v })));
  items.push(make('input', { type: 'search', id: 'find', placeholder: say('search'), 'aria-label': say('search'), value: state.find, onchange: (e) => look({ find: e.target.value }) }));
  fill(document.getElementById('filters'), ...items);
}
function drawChips() {
  fill(document.getElementById('chips'), ...(state.view === 'heads' ? headChips() : []));
}
function drawAll() {
  const part = partNow(), at = document.getElementById('picture');
  part.square ??= JSON.stringify(part.queries) === JSON.stringify(part.keys);
  palette.heads = Math.max(...part.layers.map((l) => l.heads));
  document.documentElement.lang = language;
  drawTabs();
  drawChoices(part);
  drawFilters(part);
  drawChips();
  if (state.view !== 'map') at.querySelector('.maphold')?.remove();
  kDraw[state.view](part, at);
  document.getElementById('about').textContent = say('about', percent(data.leftOut));
  document.getElementById('theme').textContent = say(isDark() ? 'light' : 'dark');
}
function start() {
  const stored = () => { try { return localStorage.getItem('headwise-language'); } catch { return null; } };
  language = data.language || stored() || (navigator.language || '').startsWith('zh') && 'zh' || 'en';
  const choice = document.getElementById('language');
  choice.value = language;
  choice.addEventListener('change', () => { language = choice.value; try { localStorage.setItem('headwise-language', language); } catch { /* a page from a file may not store */ } drawAll(); });
  fill(document.getElementById('warnings'), ...data.warnings.map((w) => make('p', { class: 'warn' }, w)));
  readLink();
  drawAll();
  addEventListener('hashchange', () => { readLink(); drawAll(); });
  document.addEventListener('theme', drawAll);
  let wide = innerWidth;
  addEventListener('resize', () => { if (innerWidth !== wide) { wide = innerWidth; drawAll(); } });
}
start();
