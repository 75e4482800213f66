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
const signed = (x) => (x < 0 ? '−' : '+') + Math.abs(x).toFixed(2);

palette.heads = report.model.heads;
