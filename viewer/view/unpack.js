// The page's data: one JSON element; weights as skips and codes in base64, unpacked layer by layer when looked at.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
/** Code 0 is none, 1 to 255 are 2^-24 to 1. */
const kWeights = Float32Array.from({ length: 256 }, (_, c) => (c ? 2 ** (24 * ((c - 1) / 254 - 1)) : 0));

/** f16 numbers in base64. */
function halvesOf(text) {
  const bytes = bytesOf(text), out = new Float32Array(bytes.length / 2);
  for (let i = 0; i < out.length; ++i) {
    const bits = bytes[2 * i] | (bytes[2 * i + 1] << 8), exponent = (bits >> 10) & 31, part = bits & 1023;
    const size = exponent === 0 ? part * 2 ** -24 : exponent === 31 ? Infinity : (1 + part / 1024) * 2 ** (exponent - 15);
    out[i] = bits & 0x8000 ? -size : size;
  }
  return out;
}

/** One head's rows: keys and weights of row i lie from `from[i]` to `from[i + 1]`; `rest[i]` is on no page. */
function headsOf(part, layer) {
  const packed = part.layers[layer];
  if (packed.unpacked) return packed.unpacked;
  const counts = bytesOf(packed.c), halves = bytesOf(packed.p), half = (n) => (halves[n >> 1] >> (4 * (n & 1))) & 15, rest = bytesOf(packed.r), n = part.queries.t.length;
  packed.unpacked = [];
  let at = 0;
  for (let h = 0; h < packed.heads; ++h) {
    const from = new Uint32Array(n + 1);
    for (let i = 0; i < n; ++i) from[i + 1] = from[i] + (counts[2 * (h * n + i)] | (counts[2 * (h * n + i) + 1] << 8));
    const keys = new Uint32Array(from[n]), weights = new Float32Array(from[n]);
    for (let i = 0, e = 0; i < n; ++i)
      for (let key = 0; e < from[i + 1]; ++e, ++key) {
        let skipped = half(at++);
        for (; skipped === 15; skipped = half(at++)) key += 15;
        key += skipped;
        keys[e] = key;
        weights[e] = kWeights[half(at) | (half(at + 1) << 4)];
        at += 2;
      }
    packed.unpacked.push({ from, keys, weights, rest: Float32Array.from(rest.subarray(h * n, (h + 1) * n), (b) => b / 255) });
  }
  return packed.unpacked;
}
const normsOf = (part, layer) => (part.layers[layer].n ? (part.layers[layer].norms ||= halvesOf(part.layers[layer].n)) : null);
const vectorsOf = (part, layer, side) => (part.layers[layer][side] ? (part.layers[layer]['v' + side] ||= halvesOf(part.layers[layer][side])) : null);
