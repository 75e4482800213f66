// Pieces pooled into words: a word looks with the mean of its pieces and is looked at with their sum.
'use strict';
/** Texts, groups of pieces, and which are special, of one side as it is shown. */
function sideOf(tokens, whole) {
  const n = tokens.t.length;
  if (!whole || !tokens.w.length) return { texts: tokens.t, group: null, special: new Set(tokens.s), count: n, parts: null };
  const group = new Uint32Array(n), texts = [], parts = [], special = new Set();
  for (let i = 0; i < n; ++i) {
    if (i === 0 || tokens.w[i] !== tokens.w[i - 1]) { texts.push(''); parts.push(0); }
    group[i] = texts.length - 1;
    texts[texts.length - 1] += tokens.t[i].replace(/^##/, '');
    ++parts[parts.length - 1];
    if (tokens.s.includes(i)) special.add(group[i]);
  }
  return { texts, group, special, count: texts.length, parts };
}

/** One head as it is shown: pooled, weighed by values, sinks taken out. Keys and weights of row i lie from from[i] to from[i + 1]. */
function rowsOf(part, layer, head) {
  const id = [data.parts.indexOf(part), layer, head, state.words, state.values, state.sinks].join();
  if (shownRows.has(id)) return shownRows.get(id);
  const raw = headsOf(part, layer)[head], q = sideOf(part.queries, state.words), k = sideOf(part.keys, state.words);
  const norms = state.values ? normsOf(part, layer) : null, base = head * part.keys.t.length, n = part.queries.t.length;
  const dense = new Float32Array(k.count), from = new Uint32Array(q.count + 1), rest = new Float32Array(q.count);
  const keys = new Uint32Array(raw.keys.length), weights = new Float32Array(raw.keys.length);
  let touched = [], at = 0;
  const close = (row) => {
    const all = norms ? touched.reduce((sum, key) => sum + dense[key], 0) : 1;
    for (const key of touched.sort((a, b) => a - b)) {
      if (!(state.sinks && (k.special.has(key) || key === 0))) { keys[at] = key; weights[at++] = all > 0 ? dense[key] / all : 0; }
      dense[key] = 0;
    }
    touched = [];
    from[row + 1] = at;
  };
  for (let i = 0; i < n; ++i) {
    const row = q.group ? q.group[i] : i, share = q.parts ? 1 / q.parts[row] : 1;
    for (let e = raw.from[i]; e < raw.from[i + 1]; ++e) {
      const key = k.group ? k.group[raw.keys[e]] : raw.keys[e], w = raw.weights[e] * share * (norms ? norms[base + raw.keys[e]] : 1);
      if (dense[key] === 0 && w > 0) touched.push(key);
      dense[key] += w;
    }
    rest[row] += raw.rest[i] * share;
    if (i + 1 === n || (q.group ? q.group[i + 1] : i + 1) !== row) close(row);
  }
  const made = { from, keys: keys.subarray(0, at), weights: weights.subarray(0, at), rest, q, k };
  if (shownRows.size > 200) shownRows.clear();
  shownRows.set(id, made);
  return made;
}
const shownRows = new Map();
/** One weight as it is shown; 0 where it is none or not on the page. */
function weightAt(shown, i, j) {
  for (let e = shown.from[i]; e < shown.from[i + 1]; ++e) if (shown.keys[e] === j) return shown.weights[e];
  return 0;
}
/** Parts whose tokens, as they are shown, stand for those of this part: their maps can be subtracted. */
function comparable(part) {
  const q = sideOf(part.queries, state.words).count, k = sideOf(part.keys, state.words).count;
  return data.parts.map((p, n) => [p, n]).filter(([p]) => sideOf(p.queries, state.words).count === q && sideOf(p.keys, state.words).count === k).map(([, n]) => n);
}
/** The same head of another part, or null. */
function twinOf(part, number, layer, head) {
  const other = data.parts[number];
  return other && comparable(part).includes(number) && layer < other.layers.length && head < other.layers[layer].heads ? rowsOf(other, layer, head) : null;
}
/** Half the sum of |a - b| of a row, in the mean: 0 where two heads look alike, 1 where they share nothing. */
function differenceOf(a, b) {
  const row = new Float32Array(a.k.count);
  let sum = 0;
  for (let i = 0; i < a.q.count; ++i) {
    row.fill(0);
    for (let e = a.from[i]; e < a.from[i + 1]; ++e) row[a.keys[e]] += a.weights[e];
    for (let e = b.from[i]; e < b.from[i + 1]; ++e) row[b.keys[e]] -= b.weights[e];
    sum += row.reduce((s, v) => s + Math.abs(v), 0) / 2;
  }
  return sum / a.q.count;
}
