// The view of a circuit: QK and OV of one head as scores of token and token, from the weights alone.
'use strict';
const kLabel = 74;  // pixels for the tokens along an edge
const circuitOf = (part) => part.circuit.heads.find((h) => h.layer === state.layer && h.head === state.head);
const scoresOf = (circuit, which) => (circuit.numbers ||= {})[which] ||= halvesOf(circuit[which]);
const signedText = (x) => (x > 0 ? '+' : '') + x.toFixed(2);

function paintScores(canvas, tokens, scores) {
  const n = tokens.length, cell = Math.max(9, Math.min(24, Math.floor(420 / n))), size = kLabel + n * cell, most = largestOf(scores) || 1;
  const g = canvas.getContext('2d'), ratio = Math.min(2, devicePixelRatio);
  canvas.width = canvas.height = size * ratio;
  canvas.style.width = `${size}px`;
  g.scale(ratio, ratio);
  for (let i = 0; i < n; ++i)
    for (let j = 0; j < n; ++j) {
      g.fillStyle = `rgb(${shade(scores[i * n + j] / most, true)})`;
      g.fillRect(kLabel + j * cell, kLabel + i * cell, cell, cell);
    }
  g.fillStyle = getComputedStyle(document.body).color;
  g.font = `${Math.min(12, cell + 1)}px system-ui, sans-serif`;
  g.textBaseline = 'middle';
  tokens.forEach((t, i) => {
    g.textAlign = 'right';
    g.fillText(shorten(named(t).trim(), 9), kLabel - 5, kLabel + (i + 0.5) * cell);
    g.save();
    g.translate(kLabel + (i + 0.5) * cell, kLabel - 5);
    g.rotate(-Math.PI / 2);
    g.textAlign = 'left';
    g.fillText(shorten(named(t).trim(), 9), 0, 0);
    g.restore();
  });
}
const pairRow = (from, to, score) => make('tr', {}, make('td', { class: 'token', dir: 'auto' }, shorten(named(from), 24)), make('td', { class: 'token', dir: 'auto' }, shorten(named(to), 24)), make('td', { class: 'n' }, signedText(score)));
const pairTable = (rows) => make('table', {}, make('thead', {}, make('tr', {}, make('th', {}, say('from')), make('th', {}, say('to')), make('th', { class: 'n' }, say('score')))), make('tbody', {}, ...rows));

function drawScores(part, circuit, which, top) {
  const tokens = part.circuit.t, n = tokens.length, scores = scoresOf(circuit, which), said = make('output', { class: 'small' }, ' ');
  const canvas = make('canvas', { id: `scores-${which}`, tabindex: 0, role: 'img', 'aria-label': say(which), onpointermove: (e) => {
    const r = canvas.getBoundingClientRect(), whole = canvas.width / Math.min(2, devicePixelRatio), cell = (whole - kLabel) / n;
    const j = Math.floor(((e.clientX - r.left) / r.width * whole - kLabel) / cell), i = Math.floor(((e.clientY - r.top) / r.height * whole - kLabel) / cell);
    if (i >= 0 && j >= 0 && i < n && j < n) said.textContent = `${named(tokens[i])} → ${named(tokens[j])}: ${signedText(scores[i * n + j])}`;
  } });
  paintScores(canvas, tokens, scores);
  const { read, vocabulary, all } = part.circuit, number = (x) => x.toLocaleString('en');
  const of = `${say(all ? 'all_pairs' : 'some_pairs', number(read))}${read < vocabulary ? ` (${say('first_tokens', number(read), number(vocabulary))})` : ''}`;
  return make('div', {}, make('h3', {}, say(which)), canvas, said, make('h4', {}, `${say('top_pairs')}: ${of}`),
    make('div', { class: 'scroll', id: `top-${which}`, tabindex: 0 }, pairTable(top.map(([from, to, score]) => pairRow(from, to, score)))));
}
/** The strongest pairs of the text's own tokens, for those who do not see the picture. */
function drawCircuitSide(part, circuit) {
  const tokens = part.circuit.t, n = tokens.length;
  const block = (which) => {
    const scores = scoresOf(circuit, which), order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, 10);
    return [make('h4', {}, say(which)), pairTable(order.map((p) => pairRow(tokens[Math.floor(p / n)], tokens[p % n], scores[p])))];
  };
  fill(document.getElementById('side'), make('h3', {}, `${say('layer')} ${state.layer}, ${say('head')} ${state.head}`), make('p', { class: 'small' }, say('circuit_text')), ...block('qk'), ...block('ov'));
}
function drawCircuit(part, at) {
  const circuit = circuitOf(part);
  if (!circuit) {
    const have = part.circuit.heads.map((h) => make('button', { type: 'button', class: 'chip', onclick: () => look({ layer: h.layer, head: h.head, on: [h.head] }) }, `${h.layer}·${h.head}`));
    fill(at, make('p', {}, say('no_circuit', part.circuit.heads.length)), make('div', { class: 'tools' }, ...have));
    fill(document.getElementById('side'));
    return;
  }
  fill(at, make('div', { class: 'circuits' }, drawScores(part, circuit, 'qk', circuit.topQk), drawScores(part, circuit, 'ov', circuit.topOv)));
  drawCircuitSide(part, circuit);
}
