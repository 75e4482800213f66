// Mistakes: each opens to its words and the heads that mattered; nothing is drawn before it is opened.
'use strict';
/** The words of a sentence, coloured by the sum of a number of their pieces. */
function words(s, value) {
  const shown = sideOf({ t: s.t, w: s.g, s: s.s }, true), sums = new Float64Array(shown.count);
  s.t.forEach((_, i) => { sums[shown.group ? shown.group[i] : i] += value(i); });
  const most = sums.reduce((m, x) => Math.max(m, Math.abs(x)), 1e-9);
  return make('div', { class: 'words' }, ...shown.texts.map((t, i) => make('span', {
    class: sums[i] < 0 ? 'against' : '', style: `--v:${(Math.abs(sums[i]) / most).toFixed(3)}`, title: sums[i].toFixed(3),
  }, shorten(t, 80))));
}

/** One head's matrix, a pixel a pair, scaled up by the browser. */
function matrix(s, n) {
  const size = s.t.length, canvas = make('canvas', { class: 'map', width: size, height: size, role: 'img', 'aria-label': say('matrix', s.h[n][1]) });
  canvas.style.width = canvas.style.height = '220px';
  const paint = canvas.getContext('2d'), [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue('--heat').split(',').map(Number);
  const image = paint.createImageData(size, size), { from, keys, weights } = rowsIn(s)[n];
  for (let i = 0; i < size; ++i)
    for (let e = from[i]; e < from[i + 1]; ++e) image.data.set([r, g, b, Math.round(255 * Math.sqrt(weights[e]))], 4 * (i * size + keys[e]));
  paint.putImageData(image, 0, 0);
  return canvas;
}
/** What each token is given by all, in the mean. */
function receivedBy(s, n) {
  const { keys, weights } = rowsIn(s)[n], sums = new Float64Array(s.t.length);
  keys.forEach((key, e) => { sums[key] += weights[e] / s.t.length; });
  return sums;
}

function openCase(details, index) {
  const s = report.cases[index], box = details.querySelector('.open');
  let chosen = 0;
  const draw = () => {
    const sums = s.h.length ? receivedBy(s, chosen) : null, received = (j) => sums[j];
    const heads = make('div', { class: 'tools' }, make('label', {}, say('mattered')), ...s.h.slice(0, 8).map((h, n) => make('button', {
      class: 'chip', 'aria-pressed': n === chosen, style: `--c:${colourOf(h[1])}`, onclick: () => { chosen = n; draw(); },
    }, make('i'), `${h[0]}.${h[1]} ${roleOf(h[0], h[1])} ${signed(h[2])}`.replace('  ', ' '))));
    fill(box, make('h3', {}, say('words_for', s.pl)), words(s, (i) => s.i[i]), ...(s.h.length ? [heads,
      make('div', { class: 'pair' }, matrix(s, chosen), make('div', {}, make('h3', {}, say('what_looks', s.h[chosen][0], s.h[chosen][1])), words(s, received),
        make('button', { onclick: () => { state.layer = s.h[chosen][0]; showSentence(report.gallery.length + index); location.hash = 'sentence'; } }, say('as_curves'))))] : []));
  };
  draw();
}

function startCases() {
  document.querySelectorAll('details.case').forEach((details, index) => {
    details.append(make('div', { class: 'open' }));
    details.addEventListener('toggle', () => { if (details.open) openCase(details, index); });
  });
  const find = document.getElementById('find');
  if (find) find.addEventListener('input', () => {
    const wanted = find.value.toLowerCase();
    document.querySelectorAll('details.case').forEach((d) => { d.hidden = !d.querySelector('summary').textContent.toLowerCase().includes(wanted); });
  });
  document.addEventListener('theme', () => document.querySelectorAll('details.case[open]').forEach((d) => d.dispatchEvent(new Event('toggle'))));
}
