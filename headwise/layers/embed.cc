#include "headwise/layers/embed.h"

#include <cmath>

#include "headwise/ops/embedding.h"

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
  const AnyView places = call.memory.take(DType::i64, {sequences.rows()});
  auto* to = static_cast<Index*>(places.data);
  for (Index b = 0; b < sequences.count(); ++b)
    for (Index row = sequences.at(b); row < sequences.at(b + 1); ++row) to[row] = row - sequences.at(b);
  return places;
}

Tensor alibi_slopes_of(Index heads) {
  require(heads > 0, ErrorKind::bad_shape, "alibi", "got ", heads, " heads; they start at 1");
  Tensor slopes(DType::f32, {heads});
  Index below = 1;
  while (below * 2 <= heads) below *= 2;
  const auto at = [](Index i, Index n) {
    return std::exp2(-8 * static_cast<double>(i) / static_cast<double>(n));
  };
  for (Index h = 0; h < heads; ++h)
    slopes.values<float>()[static_cast<std::size_t>(h)] =
        static_cast<float>(h < below ? at(h + 1, below) : at(2 * (h - below) + 1, 2 * below));
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
}

double Embed::scale() const {
  return options_.scaled ? std::sqrt(static_cast<double>(options_.model_dim)) : 1.0;
}

AnyView Embed::forward(const AnyView& ids, Call& call, Saved* saved) const {
  require(ids.rank == 1 && ids.size[0] == call.sequences.rows(), ErrorKind::bad_shape, "embed", "ids is ",
          ids, " but the sequences hold ", call.sequences.rows(), " rows; give an id for each token");
  const AnyView table = table_.value();
  const AnyView y = call.memory.take(table.dtype, {ids.size[0], options_.model_dim});
  embedding(table, ids, scale(), y, call.ctx);
  AnyView places;
  if (positions_.given() || waves_.view().given()) {
    require(call.sequences.longest() <= options_.max_tokens, ErrorKind::bad_shape, "embed",
            "the longest sequence has ", call.sequences.longest(), " tokens but there are positions for ",
            options_.max_tokens, "; cut it or make max_tokens larger");
    places = positions_of(call.sequences, call);
    const Scratch scratch(call.memory);
    const AnyView added = call.memory.take(table.dtype, {ids.size[0], options_.model_dim});
    embedding(positions_.given() ? positions_.value() : waves_.view(), places, 1, added, call.ctx);
    add(y, added, y, call.ctx);
  }
  const DropoutOptions dropped = call.next_dropout(options_.dropout);
  if (dropped.p > 0) dropout(y, {}, dropped, y, call.ctx);
  if (saved) *saved = {ids, places, dropped};
  return y;
}

void Embed::backward(const AnyView& dy, Call& call, const Saved& saved) const {
  const Scratch scratch(call.memory);
  AnyView slope = dy;
  if (saved.dropout.p > 0) {
    slope = call.memory.take(dy.dtype, {dy.size[0], dy.size[1]});
    dropout_backward(dy, saved.dropout, slope, call.ctx);
  }
  if (table_.grad().given()) embedding_backward(slope, saved.ids, scale(), table_.grad(), call.ctx);
  if (positions_.grad().given()) embedding_backward(slope, saved.places, 1, positions_.grad(), call.ctx);
}

}  // namespace headwise
