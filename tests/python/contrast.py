"""The contrast of a page's texts in Chromium, from computed styles: colours, their alpha and opacity, and what lies under a text in an SVG.

Texts drawn on a canvas are not seen. The formula is that of WCAG 2."""

_SCRIPT = """((least) => {
  const rgba = (c) => {  // every channel of 0 to 1; the colours premultiplied
    const n = (c.match(/-?[\\d.]+(e-?\\d+)?/g) || []).map(Number), a = n.length > 3 ? n[3] : 1;
    return c === 'none' || !n.length ? [0, 0, 0, 0] : [...n.slice(0, 3).map((x) => (c.startsWith('color(') ? x : x / 255) * a), a];
  };
  const over = (top, under) => top.map((x, i) => x + (1 - top[3]) * under[i]);
  const faded = (c, o) => c.map((x) => x * o);
  const light = (c) => { const [r, g, b] = c.map((x) => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const box = (node) => { const r = document.createRange(); r.selectNodeContents(node); return r.getBoundingClientRect(); };
  const shapesUnder = (e, x, y) => {  // rectangles of the same picture, painted before the text and over its middle
    let back = [0, 0, 0, 0];
    for (const s of e.ownerSVGElement.querySelectorAll('rect')) {
      const r = s.getBoundingClientRect(), style = getComputedStyle(s);
      if (!(s.compareDocumentPosition(e) & 4) || x < r.left || x > r.right || y < r.top || y > r.bottom) continue;
      back = over(faded(rgba(style.fill), Number(style.fillOpacity) * Number(style.opacity)), back);
    }
    return back;
  };
  const ratioOf = (e, colour, r) => {
    const svg = e.ownerSVGElement, style = getComputedStyle(e);
    let back = svg ? shapesUnder(e, r.x + r.width / 2, r.y + r.height / 2) : [0, 0, 0, 0];
    let text = over(svg ? faded(rgba(style.fill), Number(style.fillOpacity)) : rgba(colour || style.color), back);
    for (let p = e; p; p = p.parentElement) {
      const s = getComputedStyle(p), own = p instanceof SVGElement && p.ownerSVGElement ? [0, 0, 0, 0] : rgba(s.backgroundColor), o = Number(s.opacity);
      back = faded(over(back, own), o);
      text = faded(over(text, own), o);
    }
    const [a, b] = [text, back].map((c) => light(over(c, [1, 1, 1, 1]).slice(0, 3))).sort((x, y) => y - x);
    return (a + .05) / (b + .05);
  };
  const weak = [];
  let seen = 0;
  const look = (e, words, r, colour) => {
    if (!r.width || !r.height || e.matches(':disabled, :disabled *') || !e.checkVisibility({ visibilityProperty: true })) return;
    ++seen;
    const ratio = ratioOf(e, colour, r);
    if (ratio < least) weak.push([Number(ratio.toFixed(2)), words.trim().slice(0, 40), `${e.parentElement.getAttribute('class') || e.parentElement.localName} > ${e.localName}.${e.getAttribute('class') || ''}`]);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode())
    if (n.textContent.trim() && !n.parentElement.matches('script, style, noscript, option, optgroup, title')) look(n.parentElement, n.textContent, box(n));
  for (const e of document.querySelectorAll('input[placeholder], select')) look(e, e.placeholder || e.value, e.getBoundingClientRect(), e.placeholder ? getComputedStyle(e, '::placeholder').color : undefined);
  return { seen, weak: weak.sort((a, b) => a[0] - b[0]) };
})"""


def weak_texts(browser, least=4.5):
    """How many texts were measured, and those below: their ratio, beginning and place, the weakest first."""
    found = browser.run(f"{_SCRIPT}({least})")
    return found["seen"], found["weak"]
