// The grid of layers x heads: coloured by a figure, arrow keys move, a head opens its figures and roles.
'use strict';
const kFigures = {
  importance: { name: say('importance'), text: (x) => x.toFixed(3) },
  hurt: { name: say('hurt'), text: (x) => signed(x) },
  entropy: { name: say('entropies'), text: (x) => say('nats', x.toFixed(2)) },
  confidence: { name: say('confidence'), text: (x) => percent(x) },
  distance: { name: say('distances'), text: (x) => say('tokens', x.toFixed(1)) },
};

function colourGrid(figure) {
  const values = report.heads.map((h) => h[figure]), low = Math.min(0, ...values), high = Math.max(...values);
  for (const h of report.heads) {
    const cell = document.getElementById(`head-${h.layer}-${h.head}`);
    if (!cell) continue;
    const v = high > low ? (h[figure] - low) / (high - low) : 0;
    cell.style.setProperty('--v', v.toFixed(3));
    cell.lastElementChild.textContent = kFigures[figure].text(h[figure]);
  }
  document.querySelectorAll('[data-figure]').forEach((b) => b.setAttribute('aria-pressed', b.dataset.figure === figure));
}

function roleRows(h) {
  return h.roles.filter((r) => r.pairs > 0).map((r) => make('tr', {},
    make('td', {}, r.name), make('td', { class: 'n' }, String(r.pairs)),
    make('td', { class: 'n' }, r.ratio.toFixed(1) + ' ×'),
    make('td', { class: 'n' }, r.meaning ? `${signed(r.with)} / ${signed(r.without)}` : ''),
    make('td', { class: r.claimed ? 'yes' : 'no' }, say(r.claimed ? 'yes' : r.looks ? 'looks_only' : 'no'))));
}

function chooseHead(layer, head, show = true) {
  const h = headAt(layer, head), box = document.getElementById('chosen');
  document.querySelectorAll('.head.chosen').forEach((c) => c.classList.remove('chosen'));
  document.getElementById(`head-${layer}-${head}`).classList.add('chosen');
  const figure = (name, value) => make('tr', {}, make('td', {}, name), make('td', { class: 'n' }, value));
  const titles = make('tr', {}, make('th', {}, say('role')), make('th', { class: 'n' }, say('pairs')), make('th', { class: 'n' }, say('of_uniform')),
    make('th', { class: 'n' }, say('hurt_with')), make('th', {}, say('role_asked')));
  const figures = make('table', {}, make('tbody', {}, ...Object.entries(kFigures).map(([key, f]) => figure(f.name, f.text(h[key])))));
  const roles = make('table', {}, make('thead', {}, titles), make('tbody', {}, ...roleRows(h)));
  fill(box, make('div', { class: 'two' },
    make('div', {}, make('h3', {}, say('layer_head', layer, head), h.role ? make('span', { class: 'pill' }, h.role) : null), figures),
    make('div', {}, make('h3', {}, say('roles_tried')), make('div', { class: 'wide' }, roles))));
  if (show && typeof showSentence === 'function') showHeadAlone(layer, head);
}

function startGrid() {
  const tools = document.getElementById('figures');
  for (const [key, f] of Object.entries(kFigures))
    tools.append(make('button', { 'data-figure': key, 'aria-pressed': false, onclick: () => colourGrid(key) }, f.name));
  document.querySelectorAll('.head').forEach((cell) => {
    const [, layer, head] = cell.id.split('-').map(Number);
    cell.addEventListener('click', () => chooseHead(layer, head));
    cell.addEventListener('keydown', (e) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
      const next = step && document.getElementById(`head-${layer + step[0]}-${head + step[1]}`);
      if (next) { next.focus(); e.preventDefault(); }
    });
  });
  if (!report.heads.length) return;
  colourGrid('importance');
  const best = report.heads.reduce((a, b) => (b.importance > a.importance ? b : a));
  chooseHead(best.layer, best.head, false);
}
