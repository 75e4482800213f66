// What is looked at: kept in the page's address, so that a link restores the exact view.
'use strict';
/** Views that a part has something for. */
const viewsOf = (part) => ['heads', 'model', 'map', 'neurons', ...(part.g ? ['generation'] : []), ...(part.circuit ? ['circuit'] : [])];
const kFresh = { view: data.compare ? 'model' : data.parts[0].g ? 'generation' : 'heads', against: data.compare ? 1 : null, part: 0, layer: 0, on: null, head: 0, mode: 'strong', strong: 3, least: 0.1, top: 2, mass: 0.7, sinks: 1, words: 1, values: 0,
  find: '', token: null, minus: null, sort: 'place', log: 1, box: null, pair: null, step: 0, figure: 'entropy' };
const state = { ...kFresh };

function readLink() {
  Object.assign(state, kFresh);
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!(key in kFresh)) continue;
    try { state[key] = JSON.parse(text); } catch { state[key] = text; }
  }
  const whole = (x, most) => (Number.isInteger(x) && x >= 0 && x < most ? x : 0);
  state.part = whole(state.part, data.parts.length);
  const part = data.parts[state.part];
  state.layer = whole(state.layer, part.layers.length);
  state.head = whole(state.head, part.layers[state.layer].heads);
  if (!Array.isArray(state.on) || !state.on.every(Number.isInteger)) state.on = null;
  if (!viewsOf(part).includes(state.view)) state.view = 'heads';
  if (!Array.isArray(state.minus) || !state.minus.every(Number.isInteger)) state.minus = null;
  if (!Number.isInteger(state.against) || !data.parts[state.against]) state.against = null;
  if (!Number.isInteger(state.step)) state.step = 0;
  if (!kStepFigures.includes(state.figure)) state.figure = 'entropy';
}
function linkOf() {
  const words = new URLSearchParams();
  for (const key of Object.keys(kFresh))
    if (JSON.stringify(state[key]) !== JSON.stringify(kFresh[key])) words.set(key, JSON.stringify(state[key]));
  return '#' + words.toString();
}
/** Changes what is looked at, and draws it. */
function look(change) {
  Object.assign(state, change);
  history.replaceState(null, '', linkOf());
  drawAll();
}
const partNow = () => data.parts[state.part];
const headsThere = () => range(partNow().layers[state.layer].heads);
const headsOn = () => state.on || headsThere();
const chipName = (head) => String(head);
const headName = (head) => `${say('head')} ${head}`;
