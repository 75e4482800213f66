// What is asked of the program that serves this page, with the key of its address.
'use strict';
const key = new URLSearchParams(location.hash.slice(1)).get('key') || '';
let lost = false;
async function ask(path, body) {
  try {
    const answer = await fetch('/map/' + path, { method: body ? 'POST' : 'GET', headers: { Authorization: 'Bearer ' + key, ...(body ? { 'Content-Type': 'application/json' } : {}) }, body: body && JSON.stringify(body) });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    lost = false;
    return answer.headers.get('Content-Type').startsWith('application/json') ? await answer.json() : await answer.arrayBuffer();
  } catch (e) {
    if (!lost) { lost = true; fill(document.getElementById('warnings'), make('p', { class: 'warn' }, `${say('lost')} ${e.message}`)); }
    throw e;
  }
}
