#include "headwise/analysis/report/report_words.h"

#include <algorithm>
#include <utility>

namespace headwise {
namespace {

constexpr std::pair<std::string_view, std::string_view> kChinese[] = {
    {"Parts of this page", "本页各部分"},
    {"Answers", "答案"},
    {"Mistakes", "错误"},
    {"Heads", "头"},
    {"One sentence", "一个句子"},
    {"Training", "训练"},
    {"About", "关于"},
    {"Light", "浅色"},
    {"Dark", "深色"},
    {"Confusion: rows are true, columns given", "混淆：行为真实标签，列为给出的标签"},
    {"Labels, weakest first", "各标签，最弱的在前"},
    {"Find a word or a label", "查找词或标签"},
    {"Colour by", "着色依据"},
    {"All figures as a table", "全部数字的表格"},
    {"One sentence, all heads", "一个句子，所有的头"},
    {"Every curve is one head looking from a word on the left at a word on the right; the wider, the more of "
     "its weight. The strongest are drawn first, three for each word in the mean. A picture shows where a "
     "head looks, not that it matters: that is what switching it off tells, above.",
     "每条曲线是一个头从左边的词看向右边的词；越宽，权重越大。最强的先画，平均每个词三条。图只说明头看向哪里"
     "，不说明它重要：重要与否，看上面关闭它之后的结果。"},
    {"This part draws with scripts, which are off. Everything else on the page is here without them.",
     "这一部分由脚本绘制，而脚本已关闭。页面的其余部分不需要脚本。"},
    {"Sentence", "句子"},
    {"None moved.", "没有变化。"},
    {"#before", "#从前"},
    {"#now", "#现在"},
    {"What moved", "变化"},
    {"{0} texts before, {1} now: in how many of them a label was given, and a word was said. z is the "
     "difference over its standard error; beyond 3 it is hardly chance.",
     "从前 {0} 条文本，现在 {1} 条：其中多少条给出了某个标签，多少条出现了某个词。z 是差值除以其标准误；超过 "
     "3 就很难是偶然。"},
    {"Labels", "标签"},
    {"label", "标签"},
    {"Words", "词"},
    {"word", "词"},
    {"{0} ends at {1}", "{0} 的终点为 {1}"},
    {"confusion of {0} labels; the tables say the same", "{0} 个标签的混淆；表格内容相同"},
    {"<b>Sentences on this page:</b> {0} utterances of {1} that were answered wrongly and {2} of the "
     "gallery, no others.",
     "<b>本页的句子：</b>{1} 中答错的 {0} 条话语，以及示例句 {2} 条，此外没有别的。"},
    {"Digits and what looks like a name are masked by dots; other words are as they were written, so look "
     "before you pass it on.",
     "数字和像姓名的内容已用点遮盖；其余的词保持原样，转发之前请检查。"},
    {"They are as they were written, numbers and names included; <code>--redact</code> masks both.",
     "它们保持原样，包括数字和姓名；<code>--redact</code> 可将两者遮盖。"},
    {"<b>Importance</b> of a head is the mean over utterances of |dL/dgate|: how fast the loss L of the true "
     "labels would move if its output were scaled. <b>Loss when off</b> is how far L rises when the head is "
     "switched off. <b>Entropy</b> of its weights in nats, <b>confidence</b> its largest weight, "
     "<b>distance</b> how far away it looks, each a mean over all words. They were measured on {0} "
     "utterances.",
     "一个头的<b>重要性</b>是 |dL/dgate| 对话语的平均：若缩放它的输出，真实标签的损失 L "
     "会变化多快。<b>关闭时的损失</b>是关闭这个头后 L "
     "上升多少。<b>熵</b>是其权重的熵（奈特），<b>置信度</b>是其最大权重，<b>距离</"
     "b>是它看得多远，均为对所有词的平均。以上在 {0} 条话语上测得。"},
    {"<b>A role</b> is claimed when the head's weight on the role's pairs of words is at least {0} times "
     "that of a head that looks everywhere alike, over {1} pairs or more, and switching the head off hurts "
     "utterances that have such a pair more than the others, and more than chance would in 5 of 100 such "
     "pages. Roles of form (previous, next, separator, broad) are in every utterance and need their weight "
     "alone. Rows of the roles: {2}.",
     "一个头要获得<b>角色</b>，它在该角色词对上的权重须至少为均匀看各处的头的 {0} 倍，且至少有 {1} "
     "对；关闭它对含有这种词对的话语的损害须大于对其他话语的损害，并且超过 100 页中 5 "
     "页会出现的偶然。形式角色（previous、next、separator、broad）每条话语都有，只看权重。各角色的定义：{2}"
     "。"},
    {"Colours of words in a mistake: blue speaks for the label that was given, orange against it (the "
     "log-odds it loses when the word is hidden). Written by headwise {0}; the model is <code>{1}</code>, "
     "{2} layers of width {3}.",
     "错误中词的颜色：蓝色支持给出的标签，橙色反对它（遮住该词时对数几率的损失）。由 headwise {0} "
     "生成；模型为 <code>{1}</code>，{2} 层，宽 {3}。"},
    {"Heads of this kind give the layer's output together, so none can be switched off or judged by itself; "
     "where each looks is drawn below.",
     "这种头共同给出层的输出，因此无法单独关闭或评判；下面画出每个头看向哪里。"},
    {"These heads mix their weights: what is drawn and judged is the size of what multiplies the values "
     "after mixing, as shares of each row.",
     "这些头会混合它们的权重：所画和所评判的，是混合之后乘在值上的系数的大小，按每行的份额计。"},
    {"Layers from top to bottom, heads from left to right, each with its role where it has one: {0} of {1} "
     "do. A role needs two proofs, both shown: where the head looks, and what is lost without it.",
     "层从上到下，头从左到右，有角色的写出角色：{1} 个头中有 {0} "
     "个。角色需要两个证据，都列在这里：头看向哪里，以及没有它会损失什么。"},
    {"{0}: what its heads do", "{0}：它的头在做什么"},
    {"A recogniser of {0} intents with {1} layers of attention, looked at through {2} utterances of {3}.",
     "识别 {0} 种意图的模型，{1} 层注意力，用 {3} 的 {2} 条话语检视。"},
    {"of utterances with all intents right", "的话语全部意图正确"},
    {"of utterances answered right", "的话语回答正确"},
    {"mistakes", "个错误"},
    {"intents", "种意图"},
    {"heads with a role", "个头有角色"},
    {"{0} of {1} utterances are right.", "{1} 条话语中 {0} 条正确。"},
    {"Red is what went wrong, and where it went.", "红色表示错误，以及错到了哪里。"},
    {"This model folder holds no curves of its training.", "这个模型文件夹没有训练曲线。"},
    {"Steps from left to right; the number is where each curve ends.", "步数从左到右；数字是曲线的终点。"},
    {"There are none in these data.", "这份数据中没有错误。"},
    {"{0} of {1}, the most confident first. Open one to see which words and heads led there.",
     "{1} 个错误中的 {0} 个，置信度最高的在前。点开可看是哪些词和头导致的。"},
    {"<b>{0}</b> was missed: it has {1} and would need more than the {2} of {3}, {4} more in log-odds. ",
     "<b>{0}</b> 落选：它有 {1}，需要高于 {3} 的 {2}，对数几率还差 {4}。"},
    {"<b>{0}</b> was missed: it has {1} and would need {2}, {3} more in log-odds. ",
     "<b>{0}</b> 落选：它有 {1}，需要 {2}，对数几率还差 {3}。"},
    {" or ", " 或 "},
    {"“{0}”", "“{0}”"},
    {"No single word speaks against it.", "没有哪个单独的词反对它。"},
    {"Words against it: {0}.", "反对它的词：{0}。"},
    {" Without {0} it would be given.", "去掉 {0} 就会给出它。"},
    {"none", "无"},
    {"head {0}", "头 {0}"},
    {"layer {0}", "层 {0}"},
    {"layer {0} head {1}", "层 {0} 头 {1}"},
    {"#layer", "#层"},
    {"#head", "#头"},
    {"role", "角色"},
    {"#importance", "#重要性"},
    {"#loss when off", "#关闭时的损失"},
    {"#entropy", "#熵"},
    {"#of uniform", "#相对均匀"},
    {"#confidence", "#置信度"},
    {"#distance", "#距离"},
    {"layer {0}, head {1}", "层 {0} 头 {1}"},
    {"{0} × uniform", "均匀的 {0} 倍"},
    {"Roles found", "找到的角色"},
    {"No head has earned a role of meaning on these data.", "在这份数据上没有头获得有意义的角色。"},
    {"head", "头"},
    {"#pairs", "#配对"},
    {"#looks there", "#看向那里"},
    {"#loss when off, utterances with", "#关闭时的损失，有此配对的话语"},
    {"#without", "#没有的"},
    {"#standard errors", "#标准误"},
    {"By form alone, {0} (layer.head): {1}.", "仅凭形式，{0}（层.头）：{1}。"},
    {"#precision", "#精确率"},
    {"#recall", "#召回率"},
    {"#true", "#真实"},
    {"Most frequent confusions", "最常见的混淆"},
    {"true", "真实"},
    {"given", "给出"},
    {"#times", "#次数"},
    {"{0} of {1} utterances are right, {2}.", "{1} 条话语中 {0} 条正确，占 {2}。"},
    {"; ", "；"},
    {"<b>{0}</b> taken for <b>{1}</b> ({2})", "<b>{0}</b> 被当作 <b>{1}</b>（{2} 次）"},
    {"What goes wrong most: {0}.", "最常出的错：{0}。"},
    {"Heads that matter most, with the loss when each is off: {0}.",
     "最重要的头，以及关闭各头时增加的损失：{0}。"},
    {", said by \"{0}\"", "，依据“{0}”"},
    {"Nothing to show.", "没有可显示的内容。"},
    {"answers that are right", "正确的答案"},
    {"{0}; the table says the same", "{0}；表格内容相同"},
    {"{0} answers: confidence {1}, right {2}", "{0} 个答案：置信度 {1}，正确 {2}"},
    {"How far a confidence can be trusted", "置信度有多可信"},
    {"A confidence of 80 % should be right 8 times in 10. The mean distance between the two, the expected "
     "calibration error, is {0}. <code>--abstain 0.8</code> holds back what is less sure.",
     "80 % 的置信度应当 10 次对 8 次。两者的平均差距，即期望校准误差，为 {0}。<code>--abstain 0.8</code> "
     "会保留不够确定的答案不予回答。"},
    {"Reliability", "可靠性"},
    {"confidence", "置信度"},
    {"Accuracy against coverage", "准确率与覆盖率"},
    {"texts that are answered, the surest first", "得到回答的文本，最确定的在前"},
    {"#abstain below", "#低于此值不答"},
    {"#answered", "#已回答"},
    {"#right of those", "#其中正确"},
    {"#held back", "#未回答"},
    {"out of scope", "范围之外"},
    {"loss", "损失"},
    {"judged", "评判"},
    {"rate", "学习率"},
    {"exact", "完全正确率"},
};

}  // namespace

ReportWords::ReportWords(std::string language) : language_(std::move(language)) {
  require(language_ == "en" || language_ == "zh", ErrorKind::bad_argument, "report", "language is \"",
          language_, "\"; give en or zh");
}

std::string ReportWords::filled_with(std::string_view english, const std::vector<std::string>& values) const {
  std::string_view said = english;
  if (language_ == "zh") {
    const auto* const there = std::find_if(std::begin(kChinese), std::end(kChinese),
                                           [&](const auto& pair) { return pair.first == english; });
    if (there != std::end(kChinese)) said = there->second;
  }
  std::string out;
  for (std::size_t at = 0; at < said.size(); ++at) {
    const bool place = said[at] == '{' && at + 2 < said.size() && said[at + 2] == '}';
    const std::size_t number = place ? static_cast<std::size_t>(said[at + 1] - '0') : values.size();
    if (number >= values.size()) {
      out += said[at];
      continue;
    }
    out += values[number];
    at += 2;
  }
  return out;
}

std::string ReportWords::page(std::string_view words) const {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t open = words.find("[[", at);
    out += words.substr(at, open - at);
    if (open == std::string_view::npos) return out;
    const std::size_t close = words.find("]]", open);
    out += filled_with(words.substr(open + 2, close - open - 2), {});
    at = close + 2;
  }
}

}  // namespace headwise
