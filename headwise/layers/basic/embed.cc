#include "headwise/layers/basic/embed.h"

#include <cmath>

#include "headwise/heads/sums.h"
#include "headwise/ops/row/embedding.h"

namespace headwise {

Tensor sinusoidal_positions(Index positions, Index dim, DType dtype) {
  Tensor waves(dtype, {positions, dim});
  for (Index p = 0; p < positions; ++p)
    for (Index c = 0; c < dim; ++c) {
      const Index even = c - c % 2;  // a sine and a cosine share an angle
      const double pair = static_cast<double>(even) / static_cast<double>(dim);
      const double angle = static_cast<double>(p) / std::pow(10000.0, pair);
      store_double(waves.view().data, dtype, p * dim + c, c % 2 ? std::cos(angle) : std::sin(angle));
    }
  return waves;
}

AnyView positions_of(const Sequences& sequences, Call& call) {
  const AnyView places = call.memory.on(Device::cpu()).take(DType::i64, {sequences.rows()});
  auto* to = static_cast<Index*>(places.data);
  for (Index b = 0; b < sequences.count(); ++b)
    for (Index row = sequences.at(b); row < sequences.at(b + 1); ++row) to[row] = row - sequences.at(b);
  return headwise::to(places, call.memory, call.ctx);
}

Tensor alibi_slopes_of(Index heads, DType dtype) {
  require(heads > 0, ErrorKind::bad_shape, "alibi", "got ", heads, " heads; they start at 1");
  Tensor slopes(dtype, {heads});
  Index below = 1;
  while (below * 2 <= heads) below *= 2;
  const auto at = [](Index i, Index n) {
    return std::exp2(-8 * static_cast<double>(i) / static_cast<double>(n));
  };
  for (Index h = 0; h < heads; ++h)
    store_double(slopes.view().data, dtype, h,
                 h < below ? at(h + 1, below) : at(2 * (h - below) + 1, 2 * below));
  return slopes;
}

Embed::Embed(ParamSet& params, std::string_view name, const EmbedOptions& o) : options_(o) {
  require(o.vocabulary > 0 && o.model_dim > 0, ErrorKind::bad_shape, "embed", "vocabulary is ", o.vocabulary,
          " and model_dim ", o.model_dim, "; both start at 1");
  const bool places = o.positions == Positions::learned || o.positions == Positions::sinusoidal;
  require(!places || o.max_tokens > 0, ErrorKind::bad_argument, "embed", name_of(o.positions),
          " positions need max_tokens, got ", o.max_tokens, "; give the longest sequence's tokens");
  const auto scope = params.scope(name);
  table_ = params.add("table", {o.vocabulary, o.model_dim},
                      Init::normal(o.scaled ? 1 / std::sqrt(static_cast<double>(o.model_dim)) : 0.02));
  if (o.positions == Positions::learned)
    positions_ = params.add("positions", {o.max_tokens, o.model_dim}, Init::normal(0.02));
  if (o.positions == Positions::sinusoidal)
    waves_ = sinusoidal_positions(o.max_tokens, o.model_dim, params.dtype());
  if (o.token_types > 0) types_ = params.add("types", {o.token_types, o.model_dim}, Init::normal(0.02));
  if (o.norm) norm_.emplace(params, "norm", o.model_dim, *o.norm);
}

double Embed::scale() const {
  return options_.scaled ? std::sqrt(static_cast<double>(options_.model_dim)) : 1.0;
}

namespace {

/// Numbers of the CPU where the table lies, each one of its rows: no kernel there can refuse one.
AnyView beside(const AnyView& table, const char* name, const InputView& ids, Call& call) {
  if (table.on_cpu() || !ids.on_cpu()) return ids;
  for (Index t = 0; t < ids.size[0]; ++t) {
    const double id = load_double(ids.data, ids.dtype, t * ids.step[0]);
    require(0 <= id && id < static_cast<double>(table.size[0]), ErrorKind::bad_argument, "embedding", name,
            "[", t, "] is ", static_cast<Index>(id), " but table has ", table.size[0],
            " rows; give numbers from 0 to ", table.size[0] - 1);
  }
  return to(ids, call.memory, call.ctx);
}

}  // namespace

/// y += table[ids].
void Embed::add_rows(const InputView& table, const InputView& ids, const AnyView& y, Call& call) const {
  const Scratch scratch(call.memory);
  const AnyView added = call.memory.take(y.dtype, {y.size[0], y.size[1]});
  embedding(table, ids, 1, added, call.ctx);
  add(y, added, y, call.ctx);
}

AnyView Embed::forward(const InputView& ids, const InputView& types, Call& call, Saved* saved) const {
  require(ids.rank == 1 && ids.size[0] == call.sequences.rows(), ErrorKind::bad_shape, "embed", "ids is ",
          ids, " but the sequences hold ", call.sequences.rows(), " rows; give an id for each token");
  require(!types.given() || (types_.given() && types.rank == 1 && types.size[0] == ids.size[0]),
          ErrorKind::bad_shape, "embed", "types is ", types, " for ids ", ids, " and ", options_.token_types,
          " token types; give one for each token to a model that has them");
  Saved local;
  Saved& s = saved ? *saved : local;
  const AnyView table = table_.value();
  require(table.where() == call.memory.device(), ErrorKind::bad_argument, "embed", "the table lies on ",
          table.where(), " but the call's memory on ", call.memory.device(), "; bring them together");
  s = {.ids = beside(table, "ids", ids, call), .places = {}, .types = types, .norm = {}, .dropout = {}};
  if (types.given()) s.types = beside(types_.value(), "types", types, call);
  AnyView y = call.memory.take(table.dtype, {ids.size[0], options_.model_dim});
  embedding(table, s.ids, scale(), y, call.ctx);
  if (positions_.given() || waves_.view().given()) {
    require(call.sequences.longest() <= options_.max_tokens, ErrorKind::bad_shape, "embed",
            "the longest sequence has ", call.sequences.longest(), " tokens but there are positions for ",
            options_.max_tokens, "; cut it or make max_tokens larger");
    s.places = positions_of(call.sequences, call);
    add_rows(positions_.given() ? positions_.value() : to(waves_.view(), call.memory, call.ctx), s.places, y,
             call);
  }
  if (types_.given()) {
    if (!types.given()) {
      s.types = call.memory.take(DType::i64, {ids.size[0]});
      clear(s.types, call.ctx);
    }
    add_rows(types_.value(), s.types, y, call);
  }
  if (norm_) y = norm_->forward(y, call, &s.norm);
  s.dropout = call.next_dropout(options_.dropout);
  if (s.dropout.p > 0) dropout(y, {}, s.dropout, y, call.ctx);
  return y;
}

void Embed::backward(const InputView& dy, Call& call, const Saved& saved) const {
  const Scratch scratch(call.memory);
  AnyView slope = dy;
  if (saved.dropout.p > 0) {
    slope = call.memory.take(dy.dtype, {dy.size[0], dy.size[1]});
    dropout_backward(dy, saved.dropout, slope, call.ctx);
  }
  if (norm_) slope = norm_->backward(slope, call, saved.norm);
  if (table_.grad().given()) embedding_backward(slope, saved.ids, scale(), table_.grad(), call.ctx);
  if (positions_.grad().given()) embedding_backward(slope, saved.places, 1, positions_.grad(), call.ctx);
  if (types_.grad().given()) embedding_backward(slope, saved.types, 1, types_.grad(), call.ctx);
}

}  // namespace headwise
