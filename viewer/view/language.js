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
    generation: 'Generation', step: 'Step', back: 'One step back', on: 'One step on', colour: 'Colour', likely: 'Likeliest next', looks_at: 'looks at', no_steps: 'The model ended the text at once: nothing was written.',
    step_help: 'Arrows go a step, Page Up and Page Down ten, Home and End to the ends. The framed token looked when the outlined one was drawn. A cell names the key its head looked at most.',
    circuit: 'Circuit', qk: 'QK: which token looks at which', ov: 'OV: what a token that is looked at makes likelier', top_pairs: 'Largest of the vocabulary', score: 'score', from: 'from', to: 'to', no_circuit: 'This page holds no circuit of this head. It has: {0}.',
    circuit_text: 'From the weights alone: a token is its embedding behind the layer’s norm, without a position. Blue: more than the mean of the vocabulary; orange: less.', all_pairs: 'all pairs of {0} tokens', some_pairs: 'of {0} tokens, those that stand out against all', first_tokens: 'the first {0} of {1} tokens',
    difference: 'difference', difference_text: '0 where both look alike, 1 where they share nothing', apart: 'The two models part the text into different tokens. Whole words may fit together: try that switch; else their maps cannot be subtracted.',
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
    generation: '生成', step: '步', back: '后退一步', on: '前进一步', colour: '颜色', likely: '最可能的下一个', looks_at: '看向', no_steps: '模型立刻结束了文本，没有写出任何内容。',
    step_help: '方向键走一步，Page Up 与 Page Down 走十步，Home 与 End 到两端。加框的词元在看，描边的词元被写出。格中是该头最看重的键。',
    circuit: '回路', qk: 'QK：哪个词元看向哪个', ov: 'OV：被看的词元使什么更可能', top_pairs: '词表中最大的', score: '分数', from: '从', to: '到', no_circuit: '本页没有这个头的回路。有：{0}。',
    circuit_text: '只由权重得出：词元是该层归一化后的嵌入，不含位置。蓝色高于词表均值，橙色低于。', all_pairs: '{0} 个词元的全部配对', some_pairs: '{0} 个词元中突出者与全部的配对', first_tokens: '{1} 个词元中的前 {0} 个',
    difference: '差异', difference_text: '0 为完全相同，1 为毫无重叠', apart: '两个模型切分文本的方式不同。可试按整词；否则两张图不能相减。',
    picture: '第 {0} 层的注意力；旁边的列表内容相同', open: '打开第 {0} 层第 {1} 个头', tokens: '{0} 个词元', pair: '{0} → {1} 的神经元',
  },
};
let language = 'en';
const say = (word, ...values) => (kWords[language][word] || kWords.en[word] || word).replace(/\{(\d)\}/g, (_, n) => values[n]);
