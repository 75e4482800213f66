// The report's data: one JSON element of the page, weights as bytes in base64, unpacked when they are drawn.
'use strict';
const report = JSON.parse(document.getElementById('data').textContent);

/** Weights of one sentence: head n of `s.h` looks from token i at token j. A byte b stands for (b / 255)^2. */
function weightsOf(s) {
  if (s.bytes) return s.bytes;
  const raw = atob(s.w || '');
  s.bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) s.bytes[i] = raw.charCodeAt(i);
  return s.bytes;
}
function weight(s, n, i, j) {
  const b = weightsOf(s)[(n * s.t.length + i) * s.t.length + j] / 255;
  return b * b;
}

const headAt = (layer, head) => report.heads.find((h) => h.layer === layer && h.head === head);
/** A head's role, unless the sentence shows the heads of another model. */
const roleOf = (layer, head, s) => (s && s.m ? '' : (headAt(layer, head) || {}).role || '');
const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + ' %';
const signed = (x) => (x < 0 ? '−' : '+') + Math.abs(x).toFixed(2);

// Eight colours of Okabe and Ito (yellow darkened to be seen on white), then a palette of twelve for more
// heads; both are told apart by people who see red and green alike. Further heads repeat them with dashes.
const kEight = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#8e7cc3', '#a39b1d'];
const kTwelve = ['#9f0162', '#009f81', '#ff5aaf', '#00c2a8', '#8400cd', '#008df9', '#00b4e6', '#d08bd6', '#a40122', '#e20134',
  '#ff6e3a', '#e0a51e'];
const kEightOnDark = ['#4aa8e0', '#ff8a3d', '#2fc49a', '#e39ac0', '#86cdf5', '#ffc14d', '#b5a6e6', '#cfc64a'];
const kTwelveOnDark = ['#d95fa8', '#1fc7a5', '#ff85c4', '#5ff0d8', '#b26bf0', '#4db4ff', '#66d8ff', '#f0b8f5', '#e0566f', '#ff5c7c',
  '#ff9a70', '#ffcf66'];
const isDark = () => document.documentElement.dataset.theme === 'dark';
const manyHeads = report.model.heads > 8, colours = manyHeads ? 12 : 8;
const colourOf = (head) => (manyHeads ? (isDark() ? kTwelveOnDark : kTwelve) : (isDark() ? kEightOnDark : kEight))[head % colours];
const dashOf = (head) => (head < colours ? '' : '7 5');

/** An element with attributes and children; text is always text. */
function make(name, attributes = {}, ...children) {
  const svg = ['svg', 'path', 'g', 'text', 'rect', 'title', 'line'].includes(name);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
    else if (key.startsWith('aria-') && value !== undefined) e.setAttribute(key, String(value));
    else if (value !== undefined && value !== false) e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}
function fill(element, ...children) {
  element.replaceChildren(...children.filter((c) => c !== null && c !== undefined));
}
