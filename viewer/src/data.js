// The report's data: one JSON element of the page, weights as bytes in base64, unpacked when they are drawn.
'use strict';
const report = JSON.parse(document.getElementById('data').textContent);

/** Up to so many tokens a row of weights is whole; longer ones hold the heaviest keys with their places. */
const kDense = 48;
/** Rows of the heads of `s.h`: keys and weights of row i lie from `from[i]` to `from[i + 1]`. A byte b stands for (b / 255)^2. */
function rowsIn(s) {
  if (s.rows) return s.rows;
  const bytes = Uint8Array.from(atob(s.w || ''), (c) => c.charCodeAt(0)), n = s.t.length;
  let at = 0;
  s.rows = s.h.map(() => {
    const from = new Uint32Array(n + 1), keys = [], weights = [];
    for (let i = 0; i < n; ++i) {
      const count = n <= kDense ? n : bytes[at++];
      for (let e = 0; e < count; ++e) {
        const key = n <= kDense ? e : bytes[at++] | (bytes[at++] << 8), b = bytes[at++] / 255;
        if (b > 0) { keys.push(key); weights.push(b * b); }
      }
      from[i + 1] = keys.length;
    }
    const rest = Float32Array.from({ length: n }, (_, i) => (n <= kDense ? 0 : Math.max(0, 1 - weights.slice(from[i], from[i + 1]).reduce((a, b) => a + b, 0))));
    return { from, keys: Uint32Array.from(keys), weights: Float32Array.from(weights), rest };
  });
  return s.rows;
}

const headAt = (layer, head) => report.heads.find((h) => h.layer === layer && h.head === head);
/** A head's role, unless the sentence shows the heads of another model. */
const roleOf = (layer, head, s) => (s && s.m ? '' : (headAt(layer, head) || {}).role || '');
const signed = (x) => (x < 0 ? '−' : '+') + Math.abs(x).toFixed(2);

palette.heads = report.model.heads;
