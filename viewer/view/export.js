// What is seen, taken away: as SVG, PNG or CSV, or as a link.
'use strict';
function save(name, type, content) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const a = make('a', { href: url, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
const fileName = (end) => `attention-layer${state.layer}-${state.view === 'heads' ? 'heads' : 'head' + state.head}.${end}`;

/** The picture as SVG text: curves as they are; a map as one rectangle for each weight drawn. */
function svgText() {
  const flow = document.querySelector('#picture svg.flow');
  if (flow) {
    const copy = flow.cloneNode(true), [, , wide, tall] = flow.getAttribute('viewBox').split(' ');
    copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
    copy.setAttribute('width', wide);
    copy.setAttribute('height', tall);
    copy.prepend(Object.assign(document.createElementNS('http://www.w3.org/2000/svg', 'style'),
      { textContent: 'text{font:13px sans-serif}path{fill:none;stroke-linecap:round}rect{fill:none}' }));
    return new XMLSerializer().serializeToString(copy);
  }
  const shown = rowsOf(partNow(), state.layer, state.head), rects = [];
  for (let i = 0; i < shown.q.count; ++i)
    for (let e = shown.from[i]; e < shown.from[i + 1]; ++e)
      if (toned(shown.weights[e]) > 0.02) rects.push(`<rect x="${shown.keys[e]}" y="${i}" width="1" height="1" fill="rgb(${shade(toned(shown.weights[e]), false)})"/>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${shown.k.count} ${shown.q.count}" shape-rendering="crispEdges">${rects.join('')}</svg>`;
}
function savePng() {
  const canvas = document.querySelector('#picture canvas.big');
  if (canvas) { canvas.toBlob((b) => save(fileName('png'), 'image/png', b)); return; }
  const svg = svgText(), image = new Image();
  image.onload = () => {
    const c = make('canvas', { width: 2 * image.width, height: 2 * image.height }), g = c.getContext('2d');
    g.fillStyle = getComputedStyle(document.body).backgroundColor;
    g.fillRect(0, 0, c.width, c.height);
    g.drawImage(image, 0, 0, c.width, c.height);
    c.toBlob((b) => save(fileName('png'), 'image/png', b));
  };
  image.src = 'data:image/svg+xml;base64,' + btoa(String.fromCharCode(...new Uint8Array(new TextEncoder().encode(svg))));
}
/** A cell that a spreadsheet reads as text, whatever the token says. */
const cellOf = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? "'" + text : text).replaceAll('"', '""')}"`;
/** Every step and head of a text that was written. */
function stepsCsv(part) {
  const lines = ['step,token,layer,head,entropy,largest,first,top_key'];
  part.g.steps.forEach((_, step) => part.layers.forEach((l, layer) => range(l.heads).forEach((head) => {
    const [top] = topKeys(part, layer, head, part.g.prompt - 1 + step, 1);
    lines.push([step, cellOf(part.g.t[part.g.prompt + step]), layer, head, ...kStepFigures.map((f) => figureAt(part, f, step, layer, head).toPrecision(4)), cellOf(top ? part.g.t[top[0]] : '')].join());
  })));
  return lines.join('\n') + '\n';
}
function circuitCsv(part) {
  const tokens = part.circuit.t, n = tokens.length, lines = ['layer,head,circuit,from,to,score'];
  for (const h of part.circuit.heads)
    for (const which of ['qk', 'ov'])
      scoresOf(h, which).forEach((x, p) => lines.push([h.layer, h.head, which, cellOf(tokens[Math.floor(p / n)]), cellOf(tokens[p % n]), x.toPrecision(4)].join()));
  return lines.join('\n') + '\n';
}
function csvText() {
  if (state.view === 'generation') return stepsCsv(partNow());
  if (state.view === 'circuit') return circuitCsv(partNow());
  const heads = state.view === 'heads' ? headsOn() : [state.head], lines = ['layer,head,query,key,query_token,key_token,weight'];
  for (const head of heads) {
    const shown = rowsOf(partNow(), state.layer, head);
    for (let i = 0; i < shown.q.count; ++i)
      for (const e of state.view === 'heads' ? kept(shown, i) : [...Array(shown.from[i + 1] - shown.from[i]).keys()].map((x) => x + shown.from[i]))
        lines.push([state.layer, head, i, shown.keys[e], cellOf(shown.q.texts[i]), cellOf(shown.k.texts[shown.keys[e]]), shown.weights[e].toPrecision(4)].join());
  }
  return lines.join('\n') + '\n';
}
const exportButtons = () => [
  fromSteps() ? null : make('button', { type: 'button', id: 'svg', onclick: () => save(fileName('svg'), 'image/svg+xml', svgText()) }, say('svg')),
  fromSteps() ? null : make('button', { type: 'button', id: 'png', onclick: savePng }, say('png')),
  make('button', { type: 'button', id: 'csv', onclick: () => save(fileName('csv'), 'text/csv', csvText()) }, say('csv')),
  make('button', { type: 'button', id: 'link', onclick: async (e) => {
    try { await navigator.clipboard.writeText(location.href); e.target.textContent = say('copied'); } catch { prompt(say('link'), location.href); }
  } }, say('link'))];
