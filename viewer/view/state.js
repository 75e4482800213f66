// What is looked at: kept in the page's address, so that a link restores the exact view.
'use strict';
const kFresh = { view: 'heads', part: 0, layer: 0, on: null, head: 0, mode: 'strong', strong: 3, least: 0.1, top: 2, mass: 0.7, sinks: 1, words: 1, values: 0,
  find: '', token: null, minus: null, sort: 'place', log: 1, box: null, pair: null };
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
  if (!kViews.includes(state.view)) state.view = 'heads';
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
const headsOn = () => state.on || partNow().layers[state.layer].heads && [...Array(partNow().layers[state.layer].heads).keys()];
