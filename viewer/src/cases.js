// Mistakes: each opens to its words and the heads that mattered; nothing is drawn before it is opened.
'use strict';
function words(s, value) {
  const most = Math.max(1e-9, ...s.t.map((_, i) => Math.abs(value(i))));
  return make('div', { class: 'words' }, ...s.t.map((t, i) => make('span', {
    class: value(i) < 0 ? 'against' : '', style: `--v:${(Math.abs(value(i)) / most).toFixed(3)}`, title: value(i).toFixed(3),
  }, shorten(t, 80))));
}

/** One head's matrix, a pixel a pair, scaled up by the browser. */
function matrix(s, n) {
  const size = s.t.length, canvas = make('canvas', { class: 'map', width: size, height: size, role: 'img', 'aria-label': `weights of head ${s.h[n][1]}: rows look, columns are looked at` });
  canvas.style.width = canvas.style.height = '220px';
  const paint = canvas.getContext('2d'), [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue('--heat').split(',').map(Number);
  const image = paint.createImageData(size, size);
  for (let p = 0; p < size * size; ++p) image.data.set([r, g, b, weightsOf(s)[n * size * size + p]], 4 * p);
  paint.putImageData(image, 0, 0);
  return canvas;
}

function openCase(details, index) {
  const s = report.cases[index], box = details.querySelector('.open');
  let chosen = 0;
  const draw = () => {
    const received = (j) => { let sum = 0; for (let i = 0; i < s.t.length; ++i) sum += weight(s, chosen, i, j); return sum / s.t.length; };
    const heads = make('div', { class: 'tools' }, make('label', {}, 'Heads that mattered'), ...s.h.slice(0, 8).map((h, n) => make('button', {
      class: 'chip', 'aria-pressed': n === chosen, style: `--c:${colourOf(h[1])}`, onclick: () => { chosen = n; draw(); },
    }, make('i'), `${h[0]}.${h[1]} ${roleOf(h[0], h[1])} ${signed(h[2])}`.replace('  ', ' '))));
    fill(box, make('h3', {}, `Words for “${s.pl}”`), words(s, (i) => s.i[i]), ...(s.h.length ? [heads,
      make('div', { class: 'pair' }, matrix(s, chosen), make('div', {}, make('h3', {}, `What layer ${s.h[chosen][0]}, head ${s.h[chosen][1]} looks at`), words(s, received),
        make('button', { onclick: () => { stage.layer = s.h[chosen][0]; showSentence(report.gallery.length + index); location.hash = 'sentence'; } }, 'Show as curves')))] : []));
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
