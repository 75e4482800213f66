// Elements and numbers as a page shows them.
'use strict';
const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + ' %';
const shorten = (text, most) => { const c = [...text]; return c.length > most ? c.slice(0, most - 1).join('') + '…' : text; };

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
const option = (value, text, now) => make('option', { value, selected: String(value) === String(now) }, text);
const select = (id, label, options, change) => make('label', {}, label, make('select', { id, onchange: (e) => change(e.target.value) }, ...options));
const check = (id, label, on, change) => make('label', {}, make('input', { type: 'checkbox', id, checked: !!on, onchange: (e) => change(e.target.checked ? 1 : 0) }), label);
const range = (n) => [...Array(n).keys()];
