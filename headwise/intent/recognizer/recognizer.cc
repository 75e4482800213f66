#include "headwise/intent/recognizer/recognizer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr const char* kOp = "recognizer";
constexpr Index kBlock = 64;             // of sparse attention
constexpr Index kMostTokens = 1 << 16;   // of one text in chunks; the rest is left unread
constexpr Index kMostDepth = 1024;       // layers that share weights cost no memory, only time
constexpr Index kMostOpen = 1 << 22;     // blocks of a sparse mask: 32 MiB of it
constexpr Index kGroupTokens = 1 << 13;  // predicted at once: memory stays small, bits are the same

/// Blocks to each side that a block of sparse attention sees.
Index reach_of(const RecognizerConfig& c) { return max_of(1, c.chunk_tokens / 2 / kBlock); }

/// Block b sees the blocks up to half a chunk away and block 0.
Mask sparse_mask(const RecognizerConfig& c) {
  const Index blocks = ceil_div(c.encoder.max_tokens, kBlock), reach = reach_of(c);
  std::vector<Index> rows = {0}, columns;
  for (Index b = 0; b < blocks; ++b) {
    if (b > reach) columns.push_back(0);
    for (Index k = max_of(0, b - reach); k <= min_of(blocks - 1, b + reach); ++k) columns.push_back(k);
    rows.push_back(static_cast<Index>(columns.size()));
  }
  return Mask::blocks(kBlock, kBlock, rows, columns);
}

Index queries_of(const RecognizerConfig& c) {
  switch (c.pooling) {
    case Pooling::attention: return c.pool_queries;
    case Pooling::labels: return static_cast<Index>(c.labels.size());
    case Pooling::mean:
    case Pooling::first:
    case Pooling::peak: break;
  }
  return 0;
}

RecognizerConfig completed(RecognizerConfig c, const Vocabulary& vocabulary) {
  c.encoder.kind = ModelKind::encoder;
  c.encoder.vocabulary = vocabulary.size();
  c.encoder.outputs = 0;
  check(c);
  return c;
}

/// The call reads these packed weights, where given, until the scope ends.
class PackedScope {
 public:
  PackedScope(Call& call, PackedWeights* own) : call_(call), before_(call.packed) {
    if (own) call.packed = own;
  }
  ~PackedScope() { call_.packed = before_; }
  PackedScope(const PackedScope&) = delete;
  PackedScope& operator=(const PackedScope&) = delete;

 private:
  Call& call_;
  PackedWeights* before_;
};

}  // namespace

void check(const RecognizerConfig& c) {
  const auto bad = ErrorKind::bad_argument;
  require(c.labels.size() >= (c.multi_label ? 1u : 2u), bad, kOp, "got ", c.labels.size(),
          " labels; there must be two or more to tell apart");
  for (const std::string& label : c.labels)
    require(!label.empty() && label.find_first_of("\n\r") == std::string::npos, bad, kOp, "the label \"",
            label, "\" is empty or holds a line end; give every label one line of text");
  require(std::set<std::string>(c.labels.begin(), c.labels.end()).size() == c.labels.size(), bad, kOp,
          "a label stands twice among the ", c.labels.size(), "; name each once");
  require(c.pooling != Pooling::attention || c.pool_queries > 0, bad, kOp, "pool_queries is ", c.pool_queries,
          "; give 1 or more");
  require(c.pool_dropout >= 0 && c.pool_dropout < 1, bad, kOp, "pool_dropout is ", c.pool_dropout,
          "; give a number from 0 and below 1");
  require(c.encoder.dropout >= 0 && c.encoder.dropout < 1, bad, kOp, "dropout is ", c.encoder.dropout,
          "; give a number from 0 and below 1");
  require(c.ngrams.buckets >= 0 && c.ngrams.buckets <= Index{1} << 31, bad, kOp, "ngram_buckets is ",
          c.ngrams.buckets, "; give 0 for none, or up to 2^31 rows");
  require(c.threshold > 0 && c.threshold < 1, bad, kOp, "threshold is ", c.threshold,
          "; give a probability between 0 and 1");
  require(c.out_of_scope >= 0 && c.out_of_scope < 1, bad, kOp, "out_of_scope is ", c.out_of_scope,
          "; give a probability from 0 and below 1");
  require(!c.cuts.on || (c.multi_label && c.cuts.most_intents > 1 &&
                         (c.pooling == Pooling::attention || c.pooling == Pooling::mean)),
          bad, kOp, "texts are to be cut with ", c.multi_label ? "several labels" : "one label",
          " a text, pooling ", name_of(c.pooling), " and at most ", c.cuts.most_intents,
          " intents; cutting needs several labels a text and pooling attention or mean");
  require(c.chunk_overlap >= 0 && c.chunk_tokens - 2 > c.chunk_overlap, bad, kOp, "chunks of ",
          c.chunk_tokens, " tokens cannot overlap by ", c.chunk_overlap,
          "; leave two tokens for [CLS] and [SEP] and one to go on");
  const bool limited =
      c.encoder.positions == Positions::learned || c.encoder.positions == Positions::sinusoidal;
  require(c.long_text != LongText::chunks || !limited || c.chunk_tokens <= c.encoder.max_tokens, bad, kOp,
          "chunk_tokens is ", c.chunk_tokens, " but the encoder has ", c.encoder.max_tokens,
          " positions; make chunks smaller or max_tokens larger");
  require(c.encoder.max_tokens >= 2 && c.encoder.max_tokens <= Index{1} << 20, bad, kOp, "max_tokens is ",
          c.encoder.max_tokens, "; give 2 to 2^20");
  require(c.encoder.depth >= 0 && c.encoder.depth <= kMostDepth, bad, kOp, "depth is ", c.encoder.depth,
          "; give 0 to ", kMostDepth, " layers");
  const Index blocks = ceil_div(c.encoder.max_tokens, kBlock);
  const Checked open = Checked(blocks) * Checked(min_of(blocks, 2 * reach_of(c) + 2));
  require(c.long_text != LongText::sparse || (open.ok && open.value <= kMostOpen), bad, kOp, "long_text is ",
          "sparse with ", c.encoder.max_tokens, " max_tokens and ", c.chunk_tokens,
          " chunk_tokens: ", saturated(open), " blocks of ", kBlock, " tokens are open, at most ", kMostOpen,
          " may be; make chunk_tokens or max_tokens smaller");
}

Recognizer::Recognizer(RecognizerConfig config, Vocabulary vocabulary, std::uint64_t seed, DType dtype)
    : Recognizer(std::move(config), std::move(vocabulary), ParamSet(dtype, seed)) {}

Recognizer::Recognizer(RecognizerConfig config, Vocabulary vocabulary, ParamSet params)
    : config_(completed(std::move(config), vocabulary)),
      tokenizer_(std::move(vocabulary), {.words = config_.words}),
      params_(std::move(params)) {
  encoder_.emplace(params_, config_.encoder);
  if (config_.ngrams.buckets > 0)
    ngrams_.emplace(params_, "ngrams", config_.ngrams, config_.encoder.model_dim);
  if (!config_.planted.empty())
    planted_.emplace(params_, config_.planted, tokenizer_.vocabulary(), *encoder_);
  pooling_.emplace(params_, "pooling", queries_of(config_), config_.encoder.model_dim);
  scores_.emplace(params_, "labels", config_.pooling == Pooling::labels ? Evidence::own : Evidence::shared,
                  config_.classes(), pooling_->outputs(), config_.encoder.model_dim);
  if (config_.cuts.on) tags_.emplace(params_, "tags", config_.encoder.model_dim, 2);
  if (config_.long_text == LongText::sparse) sparse_ = sparse_mask(config_);
  if (!config_.learn_gates) return;
  std::vector<Index> heads;
  for (Index i = 0; i < config_.encoder.depth; ++i) {
    heads.push_back(encoder_->stack().block(i).self_attention()->head_count());
    require(heads.back() > 0, ErrorKind::unsupported, kOp, "heads of ", config_.encoder.heads,
            " give the layer's output together, so none can have a gate; choose another head");
  }
  require(!heads.empty(), ErrorKind::bad_argument, kOp,
          "there is no layer, so no head to gate; give a depth");
  gates_.emplace(params_, std::move(heads));
}

Recognizer::Recognizer(RecognizerConfig config, Vocabulary vocabulary, const ParamSet& encoder,
                       std::uint64_t seed, DType dtype)
    : Recognizer(std::move(config), std::move(vocabulary), seed, dtype) {
  for (Param& to : params_.all()) {
    if (!to.name.starts_with("embed.") && !to.name.starts_with("stack.")) continue;
    const auto from = std::find_if(encoder.all().begin(), encoder.all().end(),
                                   [&](const Param& p) { return p.name == to.name; });
    require(from != encoder.all().end(), ErrorKind::bad_argument, kOp, "the given encoder has no ", to.name,
            "; give one of the same config");
    const AnyView &a = from->value, &b = to.value;
    require(a.rank == b.rank && std::equal(a.size, a.size + a.rank, b.size), ErrorKind::bad_shape, kOp,
            to.name, " is ", a, " in the given encoder but ", b, " here; give one of the same config");
    for (Index i = 0; i < b.count(); ++i) store_double(b.data, b.dtype, i, load_double(a.data, a.dtype, i));
  }
}

void Recognizer::to(Device device, Context& ctx, DType dtype) {
  mirror_.reset();
  if (device.is_cpu()) return;
  require_there(kOp, device);
  require(!gates_ && !planted_, ErrorKind::unsupported, kOp, "this model has ",
          gates_ ? "learnt gates" : "a planted head", ", which act on the CPU alone; run it there");
  require(params_.dtype() == DType::f32, ErrorKind::unsupported, kOp, "this model computes in ",
          params_.dtype(), "; on a device it runs in f32");
  require(dtype == DType::f32 || dtype == DType::bf16, ErrorKind::bad_dtype, kOp, "dtype is ", dtype,
          "; give f32 or bf16");
  mirror_ = std::make_unique<TransformerMirror>(encoder_->config(), params_, device, dtype, ctx);
}

Encoding Recognizer::encode(std::string_view text) const {
  const Index most = config_.long_text == LongText::chunks ? kMostTokens : config_.encoder.max_tokens;
  return tokenizer_.encode(text, {.around = true, .most = most});
}

void Recognizer::add_to(TextBatch& batch, const Encoding& encoding) const {
  const bool whole = config_.long_text != LongText::chunks;
  batch.add(encoding, {.tokens = whole ? config_.encoder.max_tokens : config_.chunk_tokens,
                       .overlap = whole ? 0 : config_.chunk_overlap,
                       .first_only = config_.pooling == Pooling::first});
}

TextBatch Recognizer::batch(std::span<const std::string> texts) const {
  TextBatch all;
  for (const std::string& text : texts) add_to(all, encode(text));
  return all;
}

AnyView Recognizer::forward(const TextBatch& batch, Call& call, Saved* saved, AnyView* tags) const {
  Saved local;
  Saved& s = saved ? *saved : local;
  const PackedScope packed(call, packed_.get());
  TransformerInput input{.ids = batch.id_view(), .sequences = batch.sequences(), .mask = sparse_.set()};
  if (ngrams_) {
    call.sequences = input.sequences;
    input.added = ngrams_->forward(batch.ids, tokenizer_.vocabulary(), call, &s.ngrams);
  }
  s.batch = &batch;
  if (planted_) planted_->forward(batch, call, saved ? &s.planted : nullptr);
  const AnyView given = call.head_gates;
  if (gates_ && !given.given()) call.head_gates = gates_->decided(call.memory);
  Transformer::Saved* const kept = saved ? &s.encoder : nullptr;
  s.there = mirror_ && call.plain() && call.see_rows == nullptr && call.parts.whole();
  s.rows = s.there ? mirror_->forward(input, call, kept) : encoder_->forward(input, call, kept);
  call.head_gates = given;
  if (tags && tags_) *tags = tags_->forward(s.rows, call, &s.tags);
  if (config_.pooling == Pooling::peak)
    return TextPeaks::forward(scores_->forward(s.rows, call, &s.scores), batch.pooled(), call, &s.peaks);
  AnyView pooled = pooling_->forward(s.rows, batch.pooled(), call, &s.pooling);
  s.dropout = call.next_dropout(config_.pool_dropout);
  if (s.dropout.p > 0) dropout(pooled, {}, s.dropout, pooled, call.ctx);
  return scores_->forward(pooled, call, &s.scores);
}

void Recognizer::pack_weights() { packed_ = std::make_shared<PackedWeights>(); }

AnyView Recognizer::backward(const AnyView& dlogits, Call& call, Saved& saved, const AnyView& dtags) const {
  const bool peak = config_.pooling == Pooling::peak;
  const AnyView dscores = peak ? TextPeaks::backward(dlogits, call, saved.peaks) : dlogits;
  AnyView dout = scores_->backward(dscores, call, saved.scores);
  if (!peak) {
    if (saved.dropout.p > 0) dropout_backward(dout, saved.dropout, dout, call.ctx);
    dout = pooling_->backward(dout, call, saved.pooling);
  }
  if (dtags.given()) dout = tags_->backward(dtags, call, saved.tags, dout);
  const AnyView drows = saved.there ? mirror_->backward(dout, call, saved.encoder)
                                    : encoder_->backward(dout, call, saved.encoder);
  if (ngrams_) ngrams_->backward(drows, call, saved.ngrams);
  if (planted_) planted_->backward(*saved.batch, saved.planted);
  return drows;
}

Prediction Recognizer::judge(const AnyView& logits, Index text) const {
  const Index labels = logits.size[1];
  const auto at = [&](Index l) {
    return load_double(logits.data, logits.dtype, text * logits.step[0] + l * logits.step[1]);
  };
  Prediction p;
  std::vector<double> x(static_cast<std::size_t>(labels));
  for (Index l = 0; l < labels; ++l) x[static_cast<std::size_t>(l)] = at(l);
  if (!config_.one_class()) {
    for (double& v : x) v = 1 / (1 + std::exp(-v));
  } else {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (double& v : x) sum += v = std::exp(v - most);
    for (double& v : x) v /= sum;
  }
  for (const double v : x) {
    require(
        std::isfinite(v), ErrorKind::bad_argument, kOp,
        "the scores of this text are no numbers: weights of this size overflow; train with a smaller rate");
    p.probability.push_back(static_cast<float>(v));
  }
  p.probability.resize(config_.labels.size());
  decide(config_, p);
  return p;
}

void decide(const RecognizerConfig& c, Prediction& p) {
  const std::vector<float>& x = p.probability;
  const auto at = [&](Index l) { return x[static_cast<std::size_t>(l)]; };
  const Index best = std::max_element(x.begin(), x.end()) - x.begin();
  p.labels.clear();
  p.confidence = static_cast<double>(at(best));
  p.out_of_scope = p.confidence < c.out_of_scope;
  if (p.out_of_scope) return;
  for (const IntentSpan& s : p.spans) p.labels.push_back(s.label);
  if (!c.one_class())
    for (Index l = 0; l < static_cast<Index>(x.size()); ++l)
      if (static_cast<double>(at(l)) >= c.threshold) p.labels.push_back(l);
  std::stable_sort(p.labels.begin(), p.labels.end(), [&](Index a, Index b) { return at(a) > at(b); });
  if (p.labels.empty() && (c.one_class() || c.at_least_one)) p.labels.push_back(best);
}

std::vector<Prediction> Recognizer::predict(std::span<const std::string> texts, Session& session) const {
  std::vector<Prediction> all;
  if (config_.cuts.on) {
    for (const TextReading& reading : read_cuts(texts, session)) all.push_back(answer(reading));
    return all;
  }
  TextBatch group;
  const auto run = [&] {
    session.memory.reset();
    Call call{.ctx = session.ctx, .memory = session.memory.on(encoder_->device())};
    const AnyView logits = headwise::to(forward(group, call, nullptr), session.memory, session.ctx);
    for (Index i = 0; i < group.count(); ++i) all.push_back(judge(logits, i));
    group = {};
  };
  for (const std::string& text : texts) {
    add_to(group, encode(text));
    if (static_cast<Index>(group.ids.size()) >= kGroupTokens) run();
  }
  if (group.count() > 0) run();
  return all;
}

Prediction Recognizer::predict(const std::string& text, Session& session) const {
  return std::move(predict(std::span(&text, 1), session)[0]);
}

void Recognizer::set_thresholds(double threshold, double out_of_scope) {
  RecognizerConfig c = config_;
  c.threshold = threshold, c.out_of_scope = out_of_scope;
  check(c);
  config_ = std::move(c);
}

void Recognizer::set_cuts(const CutOptions& cuts) {
  require(cuts.on == config_.cuts.on, ErrorKind::bad_argument, kOp, "cutting is ", cuts.on ? "on" : "off",
          " but the recogniser was made otherwise; make it with these settings");
  RecognizerConfig c = config_;
  c.cuts = cuts;
  check(c);
  config_ = std::move(c);
}

}  // namespace headwise
