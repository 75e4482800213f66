// Light and dark: by the reader's preference until the switch is used; kept for the next visit where allowed.
'use strict';
(function theme() {
  const root = document.documentElement, button = document.getElementById('theme');
  const stored = () => { try { return localStorage.getItem('headwise-theme'); } catch { return null; } };
  const dark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches);
  const show = () => { button.textContent = dark() ? button.dataset.light || 'Light' : button.dataset.dark || 'Dark'; };
  if (stored()) root.dataset.theme = stored();
  else if (dark()) root.dataset.theme = 'dark';
  button.addEventListener('click', () => {
    root.dataset.theme = dark() ? 'light' : 'dark';
    try { localStorage.setItem('headwise-theme', root.dataset.theme); } catch { /* a page from a file may not store */ }
    show();
    document.dispatchEvent(new Event('theme'));
  });
  show();
})();
