// Words of the surface, English and Chinese; tokens and numbers are the model's own.
'use strict';
const kWords = {
  en: {
    heads: 'Heads', model: 'Model', map: 'Map', neurons: 'Neurons', layer: 'Layer', head: 'Head', head_chips: 'Heads', all: 'all', attention: 'Attention',
    strong: 'Strongest, for each token', least: 'Weight at least', top: 'Strongest of each row', mass: 'Share of mass', none: 'everything', filter: 'Show', sinks: 'hide first and special tokens',
    words: 'whole words', values: 'weighed by values', search: 'Find a token', minus: 'minus', nothing: 'nothing', sort: 'Order by', place: 'place',
    entropy: 'entropy', largest: 'largest weight', distance: 'distance', first: 'first token', self: 'itself', previous: 'previous', next: 'next',
    pick: 'Pick a token', pick_text: 'What leaves it and what reaches it is listed here, by head. Left: the token that looks. Right: what it looks at.',
    leaves: 'leaves it for', reaches: 'reaches it from', strongest: 'Strongest', nothing_above: 'nothing above 1 %', left_out: 'not on this page',
    svg: 'SVG', png: 'PNG', csv: 'CSV', link: 'Copy link', copied: 'Copied', dark: 'Dark', light: 'Light', row: 'row', column: 'column',
    zoom: 'Wheel or + and − zoom, drag or arrows move, 0 shows all. Click holds a row and a column.', log: 'logarithmic colour',
    diagonal: 'by distance back', query: 'query', key: 'key', product: 'q × k', sum: 'sum', weight: 'weight', share: 'share',
    no_vectors: 'This page holds no queries and keys. Give q and k to see how a weight comes about.',
    about: 'A weight tells where a head looks, not that it matters. Left out: {0} of the mass of a row, in the mean. Made by headwise; nothing is loaded from elsewhere.',
    picture: 'attention of layer {0}; the list beside it says the same', open: 'open layer {0}, head {1}', tokens: '{0} tokens', pair: 'neurons of {0} → {1}',
  },
  zh: {
    heads: '头', model: '全模型', map: '权重图', neurons: '神经元', layer: '层', head: '头', head_chips: '头', all: '全部', attention: '注意力',
    strong: '最强的，每个词元平均', least: '权重不低于', top: '每行最强的', mass: '占总量', none: '全部', filter: '显示', sinks: '隐藏首个与特殊词元',
    words: '按整词', values: '按值加权', search: '查找词元', minus: '减去', nothing: '无', sort: '排序', place: '位置',
    entropy: '熵', largest: '最大权重', distance: '距离', first: '首个词元', self: '自身', previous: '前一个', next: '后一个',
    pick: '请选一个词元', pick_text: '这里按头列出它看向哪里、谁看向它。左边是看的词元，右边是被看的词元。',
    leaves: '它看向', reaches: '看向它的', strongest: '最强的连线', nothing_above: '没有超过 1 % 的', left_out: '未收入本页',
    svg: 'SVG', png: 'PNG', csv: 'CSV', link: '复制链接', copied: '已复制', dark: '深色', light: '浅色', row: '行', column: '列',
    zoom: '滚轮或 + − 缩放，拖动或方向键移动，0 显示全图。点击固定一行一列。', log: '对数色标',
    diagonal: '按向前的距离', query: '查询', key: '键', product: 'q × k', sum: '和', weight: '权重', share: '份额',
    no_vectors: '本页没有查询与键向量。给出 q 和 k 便可看到一个权重如何得来。',
    about: '权重说明一个头看向哪里，并不说明它重要。未收入的部分平均占一行的 {0}。由 headwise 生成，不从别处加载任何内容。',
    picture: '第 {0} 层的注意力；旁边的列表内容相同', open: '打开第 {0} 层第 {1} 个头', tokens: '{0} 个词元', pair: '{0} → {1} 的神经元',
  },
};
let language = 'en';
const say = (word, ...values) => (kWords[language][word] || kWords.en[word] || word).replace(/\{(\d)\}/g, (_, n) => values[n]);
