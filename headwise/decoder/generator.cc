#include "headwise/decoder/generator.h"

#include <algorithm>

namespace headwise {
namespace {

constexpr std::string_view kOp = "generate";

/// Keys depend on what a text looks at: only texts with one memory share pages.
std::string tenant_of(const GenerateRequest& r) {
  if (r.memory == nullptr) return r.tenant;
  return text(r.tenant, std::string_view("\0memory ", 8), r.memory->number());
}

}  // namespace

Generator::Generator(const Decoder& model, const Tokenizer* tokenizer, KvCache& cache,
                     const GeneratorOptions& options)
    : model_(model), tokenizer_(tokenizer), cache_(cache), options_(options) {
  require(options.step_tokens >= 1 && options.sequences >= 1, ErrorKind::bad_argument, kOp, "got steps of ",
          options.step_tokens, " tokens and ", options.sequences, " texts at once; both are 1 or more");
  require(options.draft_tokens >= 0 && options.draft_tokens <= 15, ErrorKind::bad_argument, kOp, "got ",
          options.draft_tokens, " guesses at once; 0 to 15 are checked in one step");
  const KvShape a = model.kv_shape(), b = cache.shape();
  require(a.layers == b.layers && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim &&
              a.value_dim == b.value_dim,
          ErrorKind::bad_shape, kOp, "the cache was made for another model; make it with model.kv_shape()");
}

Generator::~Generator() {
  for (const auto& [id, j] : jobs_)
    if (j->sequence.has_value()) cache_.close(*j->sequence);
}

RequestId Generator::add(GenerateRequest r) {
  const auto prompt = static_cast<Index>(r.prompt.size());
  require(prompt > 0, ErrorKind::bad_argument, kOp, "the prompt has no token; give at least one");
  require(r.max_tokens >= 0 && r.min_tokens >= 0, ErrorKind::bad_argument, kOp, "got max_tokens ",
          r.max_tokens, " and min_tokens ", r.min_tokens, "; both are 0 or more");
  for (const TokenId id : r.prompt)
    require(id >= 0 && id < model_.config().vocabulary, ErrorKind::bad_argument, kOp, "the prompt has token ",
            id, "; ids run from 0 to ", model_.config().vocabulary - 1);
  require(r.stop.empty() || tokenizer_ != nullptr, ErrorKind::bad_argument, kOp,
          "stop texts need a tokenizer, and this model has none");
  require(model_.config().cross == (r.memory != nullptr), ErrorKind::bad_argument, kOp, "a ",
          model_.config().family,
          r.memory == nullptr ? " model looks at the states of an encoder; give a memory made of them"
                              : " model has no cross-attention; leave the memory out");
  require(r.memory == nullptr || r.memory->fits(model_.config()), ErrorKind::bad_shape, kOp,
          "the memory was made for another model; make it with this one");
  r.sampling.check(model_.config().vocabulary);
  // The last token is drawn and never computed.
  const Index longest = prompt + std::max<Index>(r.max_tokens - 1, 0);
  require(longest <= model_.config().positions, ErrorKind::bad_argument, kOp, "a prompt of ", prompt,
          " tokens and ", r.max_tokens, " more do not fit the model's ", model_.config().positions,
          "; shorten one of them");
  const Index pages = ceil_div(longest, cache_.page_tokens());
  require(pages <= cache_.pages(), ErrorKind::bad_argument, kOp, "a prompt of ", prompt, " tokens and ",
          r.max_tokens, " more take ", pages, " pages; the cache has ", cache_.pages(),
          "; give it more bytes");
  const RequestId id = next_++;
  const Order order{-r.priority, id};
  jobs_.emplace(id, std::make_unique<Job>(std::move(r)));
  waiting_.insert(order);
  return id;
}

void Generator::cancel(RequestId id) {
  if (jobs_.contains(id)) cancelled_.insert(id);
}

Index Generator::missing(const Job& j) const {
  return static_cast<Index>(j.tokens.size()) - (j.sequence.has_value() ? cache_.length(*j.sequence) : 0);
}

void Generator::end(RequestId id, GenerateEvent& event, Finish finish) {
  Job& j = job(id);
  event.text += j.stream.finish();
  event.finish = finish;
  if (j.sequence.has_value()) cache_.close(*j.sequence);
  if (options_.drafter != nullptr) options_.drafter->forget(id);
  const Order order{-j.request.priority, id};
  running_.erase(order), waiting_.erase(order), cancelled_.erase(id);
  jobs_.erase(id);
}

void Generator::take_cancelled() {
  const std::set<RequestId> ids = cancelled_;
  for (const RequestId id : ids) {
    GenerateEvent& e = events_.emplace_back();
    e.id = id;
    end(id, e, Finish::cancelled);
  }
}

void Generator::preempt(RequestId id) {
  Job& j = job(id);
  budget_ += j.planned + static_cast<Index>(j.guesses.size());
  j.planned = 0, j.guesses.clear();
  if (options_.drafter != nullptr) options_.drafter->forget(id);
  cache_.close(*j.sequence);
  j.sequence.reset();
  running_.erase({-j.request.priority, id});
  waiting_.insert({-j.request.priority, id});
  ++stats_.preemptions;
}

/// The lowest priority, then the last to arrive; the first of all never goes.
RequestId Generator::victim() const { return running_.size() > 1 ? running_.rbegin()->second : -1; }

/// Rows of a running request, after others gave way; false: it gave way itself.
bool Generator::plan_rows(RequestId id, Index rows) {
  Job& j = job(id);
  while (!cache_.reserve(*j.sequence, rows)) {
    const RequestId other = victim();
    if (other < 0) return false;
    preempt(other);
    if (other == id) return false;
  }
  j.planned = rows;
  budget_ -= rows;
  return true;
}

/// Guesses never push others out: they take pages and rows that are free. How many are asked for follows how
/// many were right so far, which changes time and never text.
void Generator::plan_guesses(RequestId id, Context& ctx) {
  Job& j = job(id);
  if (j.rest > 0) {
    --j.rest;
    return;
  }
  const auto known = static_cast<Index>(j.tokens.size());
  const Index most = std::min({j.width, options_.draft_tokens, budget_, j.request.max_tokens - j.output() - 1,
                               model_.config().positions - known, cache_.most_rows(*j.sequence) - j.planned});
  if (most <= 0) return;
  const auto prompt = static_cast<Index>(j.request.prompt.size());
  std::vector<TokenId> guesses =
      options_.drafter->guess({id, j.tokens, prompt, &j.request.sampling, most}, ctx);
  for (const TokenId token : guesses)
    require(token >= 0 && token < model_.config().vocabulary, ErrorKind::bad_argument, kOp,
            "the drafter gave token ", token, "; ids run from 0 to ", model_.config().vocabulary - 1);
  guesses.resize(static_cast<std::size_t>(std::min(most, static_cast<Index>(guesses.size()))));
  const auto count = static_cast<Index>(guesses.size());
  if (count == 0 || !cache_.reserve(*j.sequence, j.planned + count)) return;
  j.guesses = std::move(guesses);
  budget_ -= count;
}

/// One guess at first, since it costs a row: texts that do not repeat are asked ever more seldom.
void Generator::learn_width(Job& j, Index right) const {
  const auto guessed = static_cast<Index>(j.guesses.size());
  if (right > 0) j.misses = 0;
  if (right == guessed) {
    j.width = std::min(options_.draft_tokens, 2 * j.width);
  } else if (right == 0) {
    constexpr Index kRest = 8, kMostDoublings = 4;
    if (j.width <= 1) j.rest = kRest << std::min(j.misses++, kMostDoublings);
    j.width = std::max<Index>(1, j.width / 2);
  } else {
    j.width = std::min(options_.draft_tokens, right + 1);
  }
}

void Generator::plan(Context& ctx) {
  budget_ = options_.step_tokens;
  for (const auto& [id, j] : jobs_) j->planned = 0, j->guesses.clear();
  // Texts that wait for one row go first, then prompts, both in order.
  for (const bool single : {true, false}) {
    const std::vector<Order> order(running_.begin(), running_.end());
    for (const Order& o : order) {
      if (!running_.contains(o) || budget_ == 0) continue;
      const Job& j = job(o.second);
      const Index left = missing(j);
      if (j.planned == 0 && (left == 1) == single)
        plan_rows(o.second, std::min({left, budget_, cache_.most_rows(*j.sequence)}));
    }
  }
  admit();
  if (options_.drafter == nullptr) return;
  const std::vector<Order> order(running_.begin(), running_.end());
  for (const Order& o : order) {
    const Job& j = job(o.second);
    if (j.planned == 1 && missing(j) == 1) plan_guesses(o.second, ctx);
  }
}

void Generator::admit() {
  const std::vector<Order> order(waiting_.begin(), waiting_.end());
  for (const Order& o : order) {
    if (budget_ == 0 || static_cast<Index>(running_.size()) >= options_.sequences) return;
    Job& j = job(o.second);
    const SequenceId sequence = cache_.open(tenant_of(j.request));
    const Index adopted = cache_.adopt(sequence, j.tokens);
    if (adopted == 0) cache_.set_prompt(sequence, static_cast<Index>(j.request.prompt.size()));
    const Index rows =
        std::min({static_cast<Index>(j.tokens.size()) - adopted, budget_, cache_.most_rows(sequence)});
    // One page for each that runs stays free: who enters must not be sent away at once.
    const Index spare = running_.empty() ? 0 : static_cast<Index>(running_.size()) * cache_.page_tokens();
    const Index whole = std::min(rows + spare, cache_.pages() * cache_.page_tokens() - adopted);
    if (!cache_.reserve(sequence, whole)) {
      cache_.close(sequence);
      return;
    }
    cache_.truncate(sequence, adopted);  // gives the spare pages back
    j.sequence = sequence;
    waiting_.erase(o), running_.insert(o);
    stats_.adopted += adopted;
    if (!plan_rows(o.second, rows)) return;
  }
}

bool Generator::step(Context& ctx) {
  events_.clear();
  take_cancelled();
  // Requests that want no token at all.
  std::vector<RequestId> none;
  for (const auto& [id, j] : jobs_)
    if (j->request.max_tokens == 0) none.push_back(id);
  for (const RequestId id : none) {
    GenerateEvent& e = events_.emplace_back();
    e.id = id;
    end(id, e, Finish::length);
  }
  if (jobs_.empty()) return !events_.empty();
  plan(ctx);
  compute(ctx);
  ++stats_.steps;
  std::stable_sort(events_.begin(), events_.end(),
                   [](const GenerateEvent& a, const GenerateEvent& b) { return a.id < b.id; });
  return true;
}

void Generator::compute(Context& ctx) {
  std::vector<DecoderRow> rows;
  std::vector<RequestId> part, asking;
  step_.watch = false;
  for (const bool single : {true, false})
    for (const Order& o : running_) {
      const Job& j = job(o.second);
      if (j.planned == 0 || (j.planned == 1 && j.guesses.empty()) != single) continue;
      part.push_back(o.second);
      const Index done = cache_.length(*j.sequence), known = static_cast<Index>(j.tokens.size());
      for (Index i = done; i < done + j.planned; ++i)
        rows.push_back(
            {*j.sequence, j.tokens[static_cast<std::size_t>(i)], i + 1 == known, j.request.memory.get()});
      for (const TokenId guess : j.guesses)
        rows.push_back({*j.sequence, guess, true, j.request.memory.get()});
      if (done + j.planned == known) asking.push_back(o.second), step_.watch = step_.watch || j.request.watch;
    }
  require(!rows.empty(), ErrorKind::bad_argument, kOp,
          "no request could take a step: all pages are taken; give the cache more bytes");
  model_.forward(rows, cache_, step_, ctx);
  stats_.rows += static_cast<Index>(rows.size());
  for (const RequestId id : part) {
    const Job& j = job(id);
    const auto done = static_cast<std::size_t>(cache_.length(*j.sequence));
    cache_.commit(*j.sequence, std::span(j.tokens).subspan(done, static_cast<std::size_t>(j.planned)));
  }
  Index asked = 0;
  for (const RequestId id : asking) {
    const auto rows_of = 1 + static_cast<Index>(job(id).guesses.size());
    GenerateEvent& e = events_.emplace_back();
    e.id = id;
    draw_all(id, asked, e);
    asked += rows_of;
  }
}

/// A guess is right when it is the token that is drawn in its place; keys of right ones stay, the rest is cut
/// off.
void Generator::draw_all(RequestId id, Index asked, GenerateEvent& e) {
  const std::vector<TokenId> guesses = job(id).guesses;
  Index right = 0;
  bool goes_on = draw_for(id, asked, e);
  const auto count = static_cast<Index>(guesses.size());
  while (goes_on && right < count && job(id).tokens.back() == guesses[static_cast<std::size_t>(right)]) {
    cache_.commit(*job(id).sequence, std::span(guesses).subspan(static_cast<std::size_t>(right), 1));
    ++right;
    goes_on = draw_for(id, asked + right, e);
  }
  stats_.guessed += count, stats_.right += right;
  if (!goes_on || count == 0) return;
  Job& j = job(id);
  learn_width(j, right);
  cache_.truncate(*j.sequence, cache_.length(*j.sequence));  // gives pages of wrong guesses back
}

bool Generator::draw_for(RequestId id, Index asked, GenerateEvent& e) {
  Job& j = job(id);
  const GenerateRequest& r = j.request;
  const std::span<const TokenId> all(j.tokens);
  const std::vector<TokenId> no_ends;
  const std::vector<TokenId>& ends =
      tokenizer_ != nullptr && !r.ignore_end ? tokenizer_->end_tokens() : no_ends;
  const bool early = j.output() < r.min_tokens;
  DrawPlace place;
  place.position = static_cast<Index>(j.tokens.size());
  if (early) place.closed = ends;
  if (tokenizer_ != nullptr) place.tokens = tokenizer_->size();
  place.top = std::max<Index>(r.logprobs, 0);
  place.logprobs = r.logprobs >= 0;
  Drawn drawn;
  try {
    drawn = draw(step_.logits(asked), r.sampling,
                 {.prompt = all.first(r.prompt.size()), .output = all.subspan(r.prompt.size())}, place);
  } catch (const Error& error) {
    e.error = error.what();
    end(id, e, Finish::error);
    return false;
  }
  ++stats_.drawn;
  if (std::find(ends.begin(), ends.end(), drawn.token) != ends.end()) {
    end(id, e, Finish::stop);
    return false;
  }
  const TokenId before = j.tokens.back();
  j.tokens.push_back(drawn.token);
  e.tokens.push_back(drawn.token);
  if (r.watch) e.heads.push_back(step_.heads()[static_cast<std::size_t>(asked)]);
  if (r.logprobs >= 0) e.drawn.push_back(drawn);
  if (tokenizer_ != nullptr) {
    e.text += j.stream.push(tokenizer_->bytes_after(before, drawn.token));
    if (j.stream.stopped()) {
      end(id, e, Finish::stop);
      return false;
    }
  }
  if (j.output() < r.max_tokens) return true;
  end(id, e, Finish::length);
  return false;
}

}  // namespace headwise
