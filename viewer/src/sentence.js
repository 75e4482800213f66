// One sentence, all heads of a layer at once, drawn by the viewer's view of heads.
'use strict';
function drawSentence() {
  const part = partNow(), focus = document.activeElement, at = focus?.dataset?.token, side = focus?.dataset?.side, held = focus?.id;
  const layers = [...new Set(part.s.h.map((h) => h[0]))].sort((a, b) => a - b);
  if (!layers.includes(state.layer)) Object.assign(state, { layer: layers[0], on: null });
  fill(document.getElementById('filters'), ...filterControls(), check('sinks', say('sinks'), state.sinks, (v) => look({ sinks: v })),
    check('words', say('words'), state.words, (v) => look({ words: v, token: null })));
  fill(document.getElementById('layers'), make('label', {}, say('layer')), ...layers.map((l) => make('button', { 'aria-pressed': l === state.layer, onclick: () => look({ layer: l, on: null }) }, String(l))));
  fill(document.getElementById('chips'), ...headChips());
  drawHeads(part, document.getElementById('flow'));
  const again = at !== undefined ? document.querySelector(`.flow g[data-side="${side}"][data-token="${at}"]`) : held && document.getElementById(held);
  if (again) again.focus({ preventScroll: true });
}
function showSentence(index, heads) {
  Object.assign(state, { part: index, token: null, on: heads || null });
  document.getElementById('pick').value = index;
  drawSentence();
}
function showHeadAlone(layer, head) {
  if (!startSentence.first) return;
  const has = (part) => part.s.h.some((h) => h[0] === layer && h[1] === head), there = has(partNow()) ? state.part : data.parts.findIndex(has);
  if (there < 0) return;
  state.layer = layer;
  showSentence(there, [head]);
}
function startSentence() {
  const pick = document.getElementById('pick'), all = sentences(), first = all.findIndex((s) => s.h.length);
  if (first < 0) return;
  startSentence.first = true;
  const group = (name, list, from) => {
    const options = list.map((s, i) => (s.h.length ? make('option', { value: from + i }, shorten(s.x, 90) + (s.m ? ` (${s.m})` : '')) : null));
    if (options.some((o) => o)) pick.append(make('optgroup', { label: name }, ...options));
  };
  group(say('gallery'), report.gallery, 0);
  group(say('mistakes'), report.cases, report.gallery.length);
  pick.addEventListener('change', () => showSentence(Number(pick.value)));
  document.addEventListener('theme', drawSentence);
  state.layer = all[first].h[0][0];
  showSentence(first);
}
