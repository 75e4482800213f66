'use strict';
// Words of the surface; labels and texts are the model's and the reader's own.
const kWords = {
  en: {
    title: 'Try a sentence', text: 'A sentence', token: 'Token of the service', ask: 'What does it want?', waiting: 'Reading …',
    foot: 'Answers come from this service alone; nothing is loaded from or sent to anywhere else. The token is kept until the page is closed.',
    none: 'Out of scope: no intent is sure enough ({0} of {1} needed).', nothing: 'No intent reaches its threshold.', said: 'said by',
    likely: 'Likeliest', words: 'Words for {0}', words_help: 'Change of the log-odds when a word is hidden. Blue speaks for it; orange, underlined, against.',
    heads: 'Heads for {0}', heads_help: 'What each head adds, in log-odds. Blue speaks for it, orange against.', head: 'head {0}', layer: 'layer {0}',
    missed: 'It was not given: it has {0} and would need {1}.', door: 'This service asks for its token.', wrong: 'That is not its token.',
    busy: 'The service is busy; try again in {0} s.', gone: 'The service does not answer.', empty: 'Write a sentence first.',
  },
  zh: {
    title: '试一句话', text: '一句话', token: '服务令牌', ask: '它想要什么？', waiting: '正在读取……',
    foot: '回答只来自本服务，不从别处加载，也不发往别处。令牌只保留到关闭本页为止。',
    none: '不在范围内：没有意图足够确定（{0}，需要 {1}）。', nothing: '没有意图达到阈值。', said: '依据',
    likely: '最可能的', words: '各词对 {0} 的作用', words_help: '隐藏一个词时对数几率的变化。蓝色支持；橙色带下划线为反对。',
    heads: '各头对 {0} 的作用', heads_help: '每个头加上的对数几率。蓝色支持，橙色反对。', head: '头 {0}', layer: '层 {0}',
    missed: '没有给出：它有 {0}，需要 {1}。', door: '本服务需要令牌。', wrong: '令牌不对。',
    busy: '服务正忙，请在 {0} 秒后再试。', gone: '服务没有回应。', empty: '请先写一句话。',
  },
};
const at = (id) => document.getElementById(id);
const kept = { get: () => { try { return localStorage.getItem('headwise-language'); } catch { return null; } }, set: (l) => { try { localStorage.setItem('headwise-language', l); } catch { /* a page may have no memory */ } } };
let language = kept.get() || ((navigator.language || '').toLowerCase().startsWith('zh') ? 'zh' : 'en');
let last = null, state = [];
const say = (word, ...values) => (kWords[language] || kWords.en)[word].replace(/\{(\d)\}/g, (_, n) => values[n]);
const percent = (p) => (100 * p).toFixed(1) + ' %';
const signed = (x) => (x < 0 ? '−' : '+') + Math.abs(x).toFixed(2);

/** An element with text, never with markup: what is shown was written by users. */
function make(tag, words, kind) {
  const e = document.createElement(tag);
  if (words !== undefined) e.textContent = words;
  if (kind) e.className = kind;
  return e;
}

/** Spans count bytes of UTF-8. */
function cutter(text) {
  const bytes = new TextEncoder().encode(text), reader = new TextDecoder();
  return (begin, end) => reader.decode(bytes.subarray(begin, end));
}

function shade(e, x, most) {
  e.style.setProperty('--v', most > 0 ? Math.abs(x) / most : 0);
  if (x < 0) e.classList.add('against');
}
const largest = (all) => all.reduce((most, x) => Math.max(most, Math.abs(x)), 0);

function given(a, cut) {
  if (a.out_of_scope) return make('p', say('none', percent(a.confidence), percent(a.needed_scope)), 'bad');
  if (a.labels.length === 0) return make('p', say('nothing'), 'bad');
  const list = make('ul', undefined, 'given');
  for (const label of a.labels) {
    const row = make('li', label), said = (a.spans || []).filter((s) => s.label === label);
    for (const s of said) row.append(make('span', ` ${say('said')} `, 'soft'), make('q', cut(s.begin, s.end).trim()));
    list.append(row);
  }
  return list;
}

function likeliest(a) {
  const table = make('table', undefined, 'top');
  for (const t of a.top) {
    const row = table.insertRow(), bar = make('i');
    row.insertCell().textContent = t.label;
    bar.style.width = `${100 * t.probability}%`;
    const cell = row.insertCell();
    cell.className = 'bar';
    cell.append(bar);
    Object.assign(row.insertCell(), { textContent: percent(t.probability), className: 'n' });
  }
  return table;
}

function wordsOf(a, cut) {
  const line = make('div', undefined, 'words'), most = largest(a.words.map((w) => w.importance));
  for (const w of a.words) {
    const e = make('span', cut(w.begin, w.end), 'word');
    e.append(make('small', signed(w.importance)));
    shade(e, w.importance, most);
    line.append(e);
  }
  return line;
}

function headsOf(a) {
  const wide = make('div', undefined, 'wide'), table = make('table', undefined, 'heads'), most = largest(a.heads.flat());
  const names = table.createTHead().insertRow();
  names.append(make('th'));
  a.heads[0].forEach((_, h) => names.append(make('th', say('head', h))));
  a.heads.forEach((layer, l) => {
    const row = table.insertRow();
    row.append(make('th', say('layer', l)));
    for (const x of layer) shade(Object.assign(row.insertCell(), { textContent: signed(x) }), x, most);
  });
  wide.tabIndex = 0;
  wide.append(table);
  return wide;
}

function draw() {
  document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en';
  document.title = say('title') + ' · headwise';
  for (const e of document.querySelectorAll('[data-say]')) e.textContent = say(e.dataset.say);
  at('language').value = language;
  at('state').textContent = state.length ? (state[0] === '' ? state[1] : say(...state)) : '';
  const box = at('answer');
  box.hidden = last === null;
  if (last === null) return;
  const { text, answer: a } = last, cut = cutter(text);
  box.replaceChildren(given(a, cut), make('h2', say('likely')), likeliest(a));
  if (!a.words) return;
  box.append(make('h2', say('words', a.explained)));
  if (!a.given) box.append(make('p', say('missed', percent(a.probability), percent(a.needed)), 'soft'));
  box.append(wordsOf(a, cut), make('p', say('words_help'), 'soft'));
  if (a.heads.length && a.heads[0].length) box.append(make('h2', say('heads', a.explained)), headsOf(a), make('p', say('heads_help'), 'soft'));
}

async function post(path, text) {
  const headers = { 'Content-Type': 'application/json' }, token = at('token').value.trim();
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { method: 'POST', headers, body: JSON.stringify({ text }), credentials: 'omit' });
}

/** The likeliest label with its reasons, or the labels alone where the model gives no reasons. */
async function ask(text) {
  let r = await post('/v1/explain', text);
  if (r.status === 404) r = await post('/v1/intents', text);
  if (r.status === 401) {
    const shown = !at('door').hidden;
    at('door').hidden = false;
    at('token').focus();
    return [shown && at('token').value ? 'wrong' : 'door'];
  }
  if (r.status === 429) return ['busy', r.headers.get('Retry-After') || '1'];
  const reply = await r.json();
  if (!r.ok) return ['', reply.error.message];
  const answer = reply.answers[0];
  if (answer.out_of_scope) answer.needed_scope = await scope().catch(() => NaN);
  last = { text, answer };
  return [];
}

/** The confidence below which nothing is claimed. */
async function scope() {
  const token = at('token').value.trim();
  const r = await fetch('/v1/labels', { headers: token ? { Authorization: `Bearer ${token}` } : {}, credentials: 'omit' });
  return r.ok ? (await r.json()).out_of_scope : NaN;
}

at('form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const text = at('text').value.trim();
  if (!text) { state = ['empty']; return draw(); }
  at('ask').disabled = true;
  state = ['waiting'];
  draw();
  try {
    state = await ask(text);
  } catch {
    state = ['gone'];
  }
  at('ask').disabled = false;
  draw();
});
at('text').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at('form').requestSubmit();
});
at('language').addEventListener('change', () => { language = at('language').value; kept.set(language); draw(); });
draw();
