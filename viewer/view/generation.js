// The view of generation: the tokens that a decoder wrote, one step at a time, and where each head looked when it drew.
'use strict';
const kStepFigures = ['entropy', 'largest', 'first'];
/** Figures of every step as numbers: [steps layers heads]. */
function figuresOf(part, name) { return (part.g.numbers ||= {})[name] ||= halvesOf(part.g[name]); }
const headsBefore = (part, layer) => part.layers.slice(0, layer).reduce((sum, l) => sum + l.heads, 0);
const figureAt = (part, name, step, layer, head) => figuresOf(part, name)[step * headsBefore(part, part.layers.length) + headsBefore(part, layer) + head];
const queryOf = (part) => part.g.prompt - 1 + stepNow(part);
const stepNow = (part) => Math.max(0, Math.min(part.g.steps.length - 1, state.step));

/** Keys and weights of one query, the heaviest first; without sinks where they are hidden. */
function topKeys(part, layer, head, query, most) {
  const raw = headsOf(part, layer)[head], special = new Set(part.keys.s), all = [];
  for (let e = raw.from[query]; e < raw.from[query + 1]; ++e)
    if (!(state.sinks && (raw.keys[e] === 0 || special.has(raw.keys[e])))) all.push([raw.keys[e], raw.weights[e]]);
  return all.sort((a, b) => b[1] - a[1]).slice(0, most);
}
const visible = (text) => text.replaceAll('\n', '⏎') || '·';
const named = (text) => (text.trim() ? visible(text) : '␣');  // in a list

function drawText(part) {
  const query = queryOf(part), drawn = query + 1, weight = new Map(topKeys(part, state.layer, state.head, query, Infinity));
  const [r, g, b] = shade(1, false), { prompt } = part.g;
  return make('p', { class: 'written', id: 'written' }, ...part.g.t.map((text, i) => {
    const w = weight.get(i) || 0, kind = i === query ? ' looks' : i === drawn ? ' drawn' : i > drawn ? ' later' : '';
    return make('span', { class: 'token' + kind + (isFound(text) ? ' found' : '') + (i >= prompt ? ' own' : ''), 'data-token': i, dir: 'auto',
      style: w > 0.002 ? `background: rgba(${r}, ${g}, ${b}, ${(0.75 * Math.sqrt(Math.min(1, w))).toFixed(2)})` : '', title: i <= query ? `${i}: ${percent(w)}` : String(i),
      onclick: () => { if (i >= prompt) look({ step: i - prompt }); } }, visible(text));
  }));
}
/** Layers down, heads across: a figure as colour, and the key looked at most. */
function drawStepGrid(part) {
  const step = stepNow(part), query = queryOf(part), most = { entropy: Math.log(query + 1) || 1, largest: 1, first: 1 }[state.figure];
  const rows = part.layers.map((l, layer) => make('tr', {}, make('th', { scope: 'row' }, String(layer)), ...range(l.heads).map((head) => {
    const x = figureAt(part, state.figure, step, layer, head), [top] = topKeys(part, layer, head, query, 1);
    const label = `${say('layer')} ${layer}, ${say('head')} ${head}: ${say(state.figure)} ${x.toFixed(2)}${top ? ', ' + visible(part.g.t[top[0]]) : ''}`;
    return make('td', {}, make('button', { type: 'button', class: 'step', 'aria-label': label, title: label, 'aria-pressed': layer === state.layer && head === state.head,
      'data-layer': layer, 'data-head': head, style: `--t: ${Math.min(1, x / most).toFixed(3)}`, onclick: () => look({ layer, head, on: [head] }) }, top ? shorten(named(part.g.t[top[0]]).trim(), 9) : '–'));
  })));
  const widest = Math.max(...part.layers.map((l) => l.heads));
  return make('div', { class: 'wide' }, make('table', { class: 'steps' }, make('thead', {}, make('tr', {}, make('th', {}, ''), ...range(widest).map((h) => make('th', {}, String(h))))), make('tbody', {}, ...rows)));
}
function drawStepSide(part) {
  const step = stepNow(part), query = queryOf(part), { steps, t } = part.g, now = steps[step];
  const item = (name, x) => make('li', { style: `--c:${colourOf(state.head)}` }, make('i'), make('b', { class: 'token', dir: 'auto' }, shorten(name, 30)), make('span', {}, percent(x)));
  const ofHead = (name) => Float32Array.from(steps, (_, s) => figureAt(part, name, s, state.layer, state.head));
  fill(document.getElementById('side'),
    make('h3', {}, `${say('step')} ${step + 1} / ${steps.length}: `, make('b', { class: 'token', dir: 'auto', id: 'drawn' }, named(t[query + 1])), ` ${percent(now.p)}`),
    make('h4', {}, say('likely')), make('ul', {}, ...now.l.map(([name, p]) => item(named(name), p))),
    make('h4', {}, `${say('layer')} ${state.layer}, ${say('head')} ${state.head}: ${say('looks_at')}`),
    make('ul', { id: 'top-keys' }, ...topKeys(part, state.layer, state.head, query, 8).map(([key, w]) => item(named(t[key]), w))),
    make('p', { class: 'small', id: 'figures' }, kStepFigures.map((f) => `${say(f)} ${figureAt(part, f, step, state.layer, state.head).toFixed(2)}`).join(' · ')),
    lineOf(say('entropy'), ofHead('entropy'), step), lineOf(say('first'), ofHead('first'), step));
}
function stepBy(part, by) {
  look({ step: Math.max(0, Math.min(part.g.steps.length - 1, stepNow(part) + by)) });
}
function keyOnStep(part, e) {
  const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[e.key];
  if (by === undefined || e.target.matches('input, select')) return;
  e.preventDefault();
  stepBy(part, by);
}
function drawGeneration(part, at) {
  if (!part.g.steps.length) { fill(at, make('p', {}, say('no_steps'))); fill(document.getElementById('side')); return; }
  const step = stepNow(part), last = part.g.steps.length - 1, button = (id, text, label, by) => make('button', { type: 'button', id, 'aria-label': label, onclick: () => stepBy(part, by) }, text);
  const had = document.activeElement?.id;
  fill(at, make('div', { class: 'tools', id: 'stepping' }, button('step-back', '◀', say('back'), -1),
    make('input', { type: 'range', id: 'step', min: 0, max: last, step: 1, value: step, 'aria-label': say('step'), 'aria-valuetext': visible(part.g.t[queryOf(part) + 1]), oninput: (e) => look({ step: Number(e.target.value) }) }),
    button('step-on', '▶', say('on'), 1), make('output', {}, `${step + 1} / ${last + 1}`),
    select('figure', say('colour'), kStepFigures.map((f) => option(f, say(f), state.figure)), (v) => look({ figure: v }))),
  drawText(part), drawStepGrid(part), make('p', { class: 'small' }, say('step_help')));
  if (['step', 'step-back', 'step-on', 'figure'].includes(had)) document.getElementById(had).focus();
  drawStepSide(part);
}
document.addEventListener('keydown', (e) => { if (state.view === 'generation') keyOnStep(partNow(), e); });
