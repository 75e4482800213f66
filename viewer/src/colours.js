// Colours of heads, for light and dark.
'use strict';
// Eight colours of Okabe and Ito (yellow darkened to be seen on white), then a palette of twelve for more
// heads; both are told apart by people who see red and green alike. Further heads repeat them with dashes.
const kEight = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#8e7cc3', '#a39b1d'];
const kTwelve = ['#9f0162', '#009f81', '#ff5aaf', '#00c2a8', '#8400cd', '#008df9', '#00b4e6', '#d08bd6', '#a40122', '#e20134',
  '#ff6e3a', '#e0a51e'];
const kEightOnDark = ['#4aa8e0', '#ff8a3d', '#2fc49a', '#e39ac0', '#86cdf5', '#ffc14d', '#b5a6e6', '#cfc64a'];
const kTwelveOnDark = ['#d95fa8', '#1fc7a5', '#ff85c4', '#5ff0d8', '#b26bf0', '#4db4ff', '#66d8ff', '#f0b8f5', '#e0566f', '#ff5c7c',
  '#ff9a70', '#ffcf66'];
const isDark = () => document.documentElement.dataset.theme === 'dark';
const palette = { heads: 8 };  // the most heads of a layer
const coloursOf = () => (palette.heads > 8 ? (isDark() ? kTwelveOnDark : kTwelve) : (isDark() ? kEightOnDark : kEight));
const colourOf = (head) => coloursOf()[head % coloursOf().length];
const dashOf = (head) => (head < coloursOf().length ? '' : '7 5');
