// Words of the surface, English and Chinese; tokens and numbers are the model's own.
'use strict';
const kWords = {
  en: {
    layer: 'Layer', head: 'Head', show: 'Show', max: 'largest weight', mean: 'mean weight', find: 'Find a token', go: 'Go to', minus: 'minus', nothing: 'nothing',
    sampled: 'sampled: one row in 64', exact: 'exact', building: '{0} of {1} bands exact, {2} s', built: 'exact pyramid in {0} s', held: 'query {0} → key {1}',
    row: 'row: what this query looks at', column: 'column: who looks at this key', waiting: 'known when the pyramid is whole', distance: 'mean weight by distance back',
    received: 'weight received, by key', rest: 'Click holds a row and a column. Drag or arrows move, wheel or + and − zoom, 0 shows all.', size: '{0} queries × {1} keys, mask {2}',
    block: 'a point is {0} × {0} pairs', single: 'single weights', lost: 'The program that serves this map has ended, or the key in the address is not its own.', places: '{0} places',
    png: 'PNG', csv: 'CSV', link: 'Copy link', copied: 'Copied', picture: 'map of layer {0}, head {1}; the lists beside it name the heaviest weights',
  },
  zh: {
    layer: '层', head: '头', show: '显示', max: '最大权重', mean: '平均权重', find: '查找词元', go: '前往', minus: '减去', nothing: '无',
    sampled: '抽样：每 64 行取一行', exact: '精确', building: '已精确 {0} / {1} 段，{2} 秒', built: '精确金字塔用时 {0} 秒', held: '查询 {0} → 键 {1}',
    row: '行：这个查询看向哪里', column: '列：谁看向这个键', waiting: '金字塔完成后可知', distance: '按向前距离的平均权重',
    received: '各键收到的权重', rest: '点击固定一行一列。拖动或方向键移动，滚轮或 + − 缩放，0 显示全图。', size: '{0} 个查询 × {1} 个键，掩码 {2}',
    block: '一点为 {0} × {0} 对', single: '单个权重', lost: '提供此图的程序已结束，或地址中的密钥不符。', places: '{0} 处',
    png: 'PNG', csv: 'CSV', link: '复制链接', copied: '已复制', picture: '第 {0} 层第 {1} 个头的权重图；旁边列出最重的权重',
  },
};
let language = 'en';
const say = (word, ...values) => (kWords[language][word] || kWords.en[word] || word).replace(/\{(\d)\}/g, (_, n) => values[n]);
