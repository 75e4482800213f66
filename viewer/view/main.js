// The page: tabs, choices, filters, and the view that is open.
'use strict';
const kViews = ['heads', 'model', 'map', 'neurons'];
const kDraw = { heads: drawHeads, model: drawModel, map: drawMap, neurons: drawNeurons };
const option = (value, text, now) => make('option', { value, selected: String(value) === String(now) }, text);
const select = (id, label, options, change) => make('label', {}, label, make('select', { id, onchange: (e) => change(e.target.value) }, ...options));
const check = (id, label, on, change) => make('label', {}, make('input', { type: 'checkbox', id, checked: !!on, onchange: (e) => change(e.target.checked ? 1 : 0) }), label);
const range = (n) => [...Array(n).keys()];

function drawTabs() {
  fill(document.getElementById('tabs'), ...kViews.map((v) => make('button', { type: 'button', role: 'tab', id: `tab-${v}`, 'aria-selected': v === state.view,
    'aria-pressed': v === state.view, onclick: () => look({ view: v, head: state.on && state.on.length === 1 ? state.on[0] : state.head }) }, say(v))));
}
function drawChoices(part) {
  const layer = part.layers[state.layer], one = state.view === 'map' || state.view === 'neurons', items = [];
  if (data.parts.length > 1)
    items.push(select('part', say('attention'), data.parts.map((p, n) => option(n, p.name, state.part)), (v) => look({ part: Number(v), layer: 0, head: 0, on: null, token: null, box: null, pair: null, minus: null })));
  if (state.view !== 'model')
    items.push(select('layer', say('layer'), range(part.layers.length).map((l) => option(l, String(l), state.layer)), (v) => {
      const to = Number(v);
      look({ layer: to, head: Math.min(state.head, part.layers[to].heads - 1), on: null });
    }));
  if (one) items.push(select('head', say('head'), range(layer.heads).map((h) => option(h, String(h), state.head)), (v) => look({ head: Number(v), on: [Number(v)] })));
  if (state.view === 'model')
    items.push(select('sort', say('sort'), ['place', ...kFigures].map((f) => option(f, say(f), state.sort)), (v) => look({ sort: v })));
  if (state.view === 'map') {
    const all = part.layers.flatMap((l, n) => range(l.heads).map((h) => [n, h]));
    items.push(select('minus', say('minus'), [option('', say('nothing'), state.minus || ''), ...all.map((p) => option(p.join(), `${p[0]}·${p[1]}`, state.minus || ''))],
      (v) => look({ minus: v ? v.split(',').map(Number) : null })));
  }
  if (one || state.view === 'model') items.push(check('log', say('log'), state.log, (v) => look({ log: v })));
  fill(document.getElementById('choose'), ...items, make('span', { class: 'gap' }), ...exportButtons());
}
function drawFilters(part) {
  const slider = { strong: [1, 20, 1], least: [0.01, 0.9, 0.01], top: [1, 16, 1], mass: [0.1, 1, 0.05] }[state.mode], items = [];
  if (state.view === 'heads') {
    items.push(select('mode', say('filter'), ['strong', 'mass', 'least', 'top', 'none'].map((m) => option(m, say(m), state.mode)), (v) => look({ mode: v })));
    if (slider)
      items.push(make('label', {}, make('input', { type: 'range', id: 'slider', min: slider[0], max: slider[1], step: slider[2], value: state[state.mode], 'aria-label': say(state.mode),
        onchange: (e) => look({ [state.mode]: Number(e.target.value) }) }), make('output', {}, state.mode === 'top' || state.mode === 'strong' ? String(state[state.mode]) : percent(state[state.mode]))));
  }
  items.push(check('sinks', say('sinks'), state.sinks, (v) => look({ sinks: v })));
  if (part.queries.w.length || part.keys.w.length) items.push(check('words', say('words'), state.words, (v) => look({ words: v, token: null, box: null, pair: null })));
  if (part.layers[state.layer].n) items.push(check('values', say('values'), state.values, (v) => look({ values: v })));
  items.push(make('input', { type: 'search', id: 'find', placeholder: say('search'), 'aria-label': say('search'), value: state.find, onchange: (e) => look({ find: e.target.value }) }));
  fill(document.getElementById('filters'), ...items);
}
function drawChips(part) {
  const on = new Set(headsOn()), heads = part.layers[state.layer].heads;
  if (state.view !== 'heads') { fill(document.getElementById('chips')); return; }
  fill(document.getElementById('chips'), make('label', {}, say('head_chips')), ...range(heads).map((h) => make('button', {
    class: 'chip', type: 'button', 'aria-pressed': on.has(h), style: `--c:${colourOf(h)}`,
    onclick: () => { if (on.size > 1 || !on.has(h)) { if (!on.delete(h)) on.add(h); look({ on: [...on].sort((a, b) => a - b) }); } },
    ondblclick: () => look({ on: on.size === 1 && on.has(h) ? null : [h] }),
  }, make('i'), String(h))), make('button', { class: 'chip', type: 'button', id: 'all-heads', onclick: () => look({ on: null }) }, say('all')));
}
function drawAll() {
  const part = partNow(), at = document.getElementById('picture');
  part.square ??= JSON.stringify(part.queries) === JSON.stringify(part.keys);
  palette.heads = Math.max(...part.layers.map((l) => l.heads));
  document.documentElement.lang = language;
  drawTabs();
  drawChoices(part);
  drawFilters(part);
  drawChips(part);
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
