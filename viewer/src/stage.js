// What the viewer's parts ask for, answered by the report: its sentences, the state of the picture, and names of heads with their roles.
'use strict';
const sentences = () => report.gallery.concat(report.cases);
/** A sentence as the viewer knows attention. */
const partOf = (s) => {
  const tokens = { t: s.t, w: s.g, s: s.s };
  return { s, name: s.m, queries: tokens, keys: tokens, square: true };
};
const data = { parts: sentences().map(partOf) };
const state = { part: 0, layer: 0, on: null, mode: 'strong', strong: 3, least: 0.1, top: 2, mass: 0.7, sinks: 1, words: 1, values: 0, find: '', token: null };
language = report.language || 'en';
const partNow = () => data.parts[state.part];
/** Heads of the layer whose weights the sentence has, by their numbers. */
function headsOf(part, layer) {
  part.layers ||= {};
  if (!part.layers[layer]) {
    part.layers[layer] = [];
    part.s.h.forEach(([l, h], n) => { if (l === layer) part.layers[layer][h] = rowsIn(part.s)[n]; });
  }
  return part.layers[layer];
}
const normsOf = () => null;
const headsThere = () => partNow().s.h.filter(([layer]) => layer === state.layer).map(([, head]) => head).sort((a, b) => a - b);
const headsOn = () => state.on || headsThere();
const chipName = (head) => `${head} ${roleOf(state.layer, head, partNow().s)}`.trim();
const headName = (head) => { const role = roleOf(state.layer, head, partNow().s); return `${say('head_lower')} ${head}${role ? ', ' + role : ''}`; };
function look(change) {
  Object.assign(state, change);
  drawSentence();
}
