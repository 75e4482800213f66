#include "headwise/decoder/forward/weights.h"

#include <algorithm>
#include <bit>
#include <span>

namespace headwise {
namespace {

/// Goes through all weights of a configuration twice: first to check them, then to read them.
class Loader {
 public:
  Loader(DecoderSource& source, std::optional<DType> dtype, const DecoderCut& cut)
      : source_(source), c_(source.config()), dtype_(dtype), cut_(cut) {}

  void load(DecoderWeights& w) {
    for (const bool reading : {false, true}) {
      reading_ = reading;
      walk(w);
      if (!reading) source_.check_nothing_left();
    }
  }

 private:
  void walk(DecoderWeights& w) {
    if (reading_)
      w.embed = matrix({{"embed", c_.vocabulary, {0, c_.vocabulary}}}, c_.model_dim);
    else
      source_.check("embed", c_.vocabulary, c_.model_dim);
    if (c_.learned_positions) table(w.positions, "positions", c_.positions, c_.model_dim);
    w.layers.resize(static_cast<std::size_t>(c_.layers));
    for (Index i = 0; i < c_.layers; ++i)
      layer(w.layers[static_cast<std::size_t>(i)], text("layers.", i, "."));
    norm(w.norm, "norm");
    if (!c_.tied && !reading_) source_.check("head", c_.vocabulary, c_.model_dim);
    if (!c_.tied && reading_) w.head = matrix({{"head", c_.vocabulary, {0, c_.vocabulary}}}, c_.model_dim);
    if (reading_) w.bytes = bytes_of(w);
  }

  void layer(DecoderLayer& l, const std::string& at) {
    const Index d = c_.model_dim, q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim;
    const auto rows = [&](const char* name, Index whole) -> Part {
      return {at + name, whole, cut_.of(whole)};
    };
    const auto heads = [&](const char* name, Index whole, const Slice& own) -> Part {
      return {at + name, whole, {own.begin * c_.head_dim, own.size * c_.head_dim}};
    };
    const Slice own = cut_.heads(c_), own_kv = cut_.kv_heads(c_);
    norm(l.norm_1, at + "norm_1");
    product(l.qkv, {heads("q", q, own), heads("k", kv, own_kv), heads("v", kv, own_kv)}, d, c_.qkv_bias);
    if (c_.head_norms) {
      vector(l.q_norm, at + "q_norm.weight", c_.head_dim);
      vector(l.k_norm, at + "k_norm.weight", c_.head_dim);
    }
    product(l.out, {rows("o", d)}, q, c_.out_bias);
    if (c_.norms_behind) norm(l.behind_1, at + "behind_1");
    if (c_.cross) {
      norm(l.cross_norm, at + "cross_norm");
      product(l.cross_q, {rows("cross_q", q)}, d, c_.qkv_bias);
      product(l.cross_kv, {rows("cross_k", kv), rows("cross_v", kv)}, d, c_.qkv_bias);
      product(l.cross_out, {rows("cross_o", d)}, q, c_.out_bias);
    }
    norm(l.norm_2, at + "norm_2");
    if (c_.gated) product(l.gate, {rows("gate", c_.feed_dim)}, d, c_.feed_bias);
    product(l.up, {rows("up", c_.feed_dim)}, d, c_.feed_bias);
    product(l.down, {rows("down", d)}, c_.feed_dim, c_.feed_bias);
    if (c_.norms_behind) norm(l.behind_2, at + "behind_2");
  }

  void vector(Tensor& to, const std::string& name, Index size) {
    if (!reading_) return source_.check(name, 0, size);
    to = Tensor(DType::f32, {size});
    source_.read(name, 0, size, to.values<float>().data());
  }
  void table(Tensor& to, const std::string& name, Index rows, Index columns) {
    if (!reading_) return source_.check(name, rows, columns);
    to = Tensor(DType::f32, {rows, columns});
    source_.read(name, rows, columns, to.values<float>().data());
  }
  void norm(NormWeights& to, const std::string& name) {
    vector(to.weight, name + ".weight", c_.model_dim);
    if (c_.norm == NormKind::layer) vector(to.bias, name + ".bias", c_.model_dim);
  }

  struct Part {
    std::string name;  // of the weight
    Index rows;
    Slice own;  // rows this rank has
  };
  StoredFormat format(const std::string& name) const {
    if (!dtype_.has_value()) return source_.format(name);
    return *dtype_ == DType::bf16  ? StoredFormat::bf16
           : *dtype_ == DType::f16 ? StoredFormat::f16
                                   : StoredFormat::f32;
  }
  /// Parts of one format, one under the other.
  StoredMatrix matrix(std::span<const Part> parts, Index columns) {
    Index rows = 0;
    for (const Part& p : parts) rows += p.own.size;
    const StoredFormat as = format(parts[0].name);
    const Index row_bytes = columns / facts_of(as).numbers * facts_of(as).bytes;
    return {as, rows, columns, [&](Index first, Index count, std::byte* to) {
              Index begin = 0;  // of the part, in rows of the matrix
              for (const Part& p : parts) {
                const Index low = std::max(first, begin), high = std::min(first + count, begin + p.own.size);
                if (low < high)
                  rows_as(as, p.name, {p.rows, columns, p.own.begin + low - begin, high - low},
                          to + (low - first) * row_bytes);
                begin += p.own.size;
              }
            }};
  }
  StoredMatrix matrix(std::initializer_list<Part> parts, Index columns) {
    return matrix(std::span(parts.begin(), parts.size()), columns);
  }
  void rows_as(StoredFormat as, const std::string& name, const SourceRows& part, std::byte* to) {
    const StoredFormat kept = source_.format(name);
    if (as == kept) return source_.read_rows(name, part, to);
    wide_.resize(static_cast<std::size_t>(part.count * part.columns));
    if (kept == StoredFormat::f32) {
      source_.read_rows(name, part, reinterpret_cast<std::byte*>(wide_.data()));
    } else {
      const StoredMatrix some(
          kept, part.count, part.columns, [&](Index first, Index count, std::byte* bytes) {
            source_.read_rows(name, {part.rows, part.columns, part.first + first, count}, bytes);
          });
      for (Index r = 0; r < part.count; ++r) some.read_row(r, wide_.data() + r * part.columns);
    }
    const DType dtype = *dtype_;
    for (std::size_t i = 0; i < wide_.size(); ++i)
      store_double(to, dtype, static_cast<Index>(i), static_cast<double>(wide_[i]));
  }

  /// Parts one under the other; those of one format that follow each other are one matrix.
  void product(ProductWeights& to, std::initializer_list<Part> names, Index columns, bool bias) {
    std::vector<Part> parts(names);
    Index all = 0, at = 0;
    for (Part& p : parts) all += p.own.size;
    if (bias && reading_) to.bias = Tensor(DType::f32, {all});
    for (Part& p : parts) {
      if (bias && !reading_) source_.check(p.name + ".bias", 0, p.rows);
      if (bias && reading_) {
        std::vector<float> whole(static_cast<std::size_t>(p.rows));
        source_.read(p.name + ".bias", 0, p.rows, whole.data());
        std::copy_n(whole.data() + p.own.begin, p.own.size, to.bias.values<float>().data() + at);
      }
      p.name += ".weight", at += p.own.size;
      if (!reading_) source_.check(p.name, p.rows, columns);
    }
    if (!reading_) return;
    for (std::size_t first = 0, last = 0; first < parts.size(); first = last) {
      while (last < parts.size() && format(parts[last].name) == format(parts[first].name)) ++last;
      to.matrices.push_back(matrix(std::span(parts).subspan(first, last - first), columns));
    }
  }

  static Index bytes_of(const DecoderWeights& w) {
    const auto tensor = [](const Tensor& t) { return t.view().count() * size_of(t.dtype()); };
    const auto norms = [&](const NormWeights& n) { return tensor(n.weight) + tensor(n.bias); };
    const auto product = [&](const ProductWeights& p) {
      Index bytes = tensor(p.bias);
      for (const StoredMatrix& m : p.matrices) bytes += m.bytes();
      return bytes;
    };
    Index all = w.embed.bytes() + tensor(w.positions) + norms(w.norm) + w.head.bytes();
    for (const DecoderLayer& l : w.layers) {
      l.each_norm([&](const NormWeights& n) { all += norms(n); });
      l.each_product([&](const ProductWeights& p) { all += product(p); });
      all += tensor(l.q_norm) + tensor(l.k_norm);
    }
    return all;
  }

  DecoderSource& source_;
  const DecoderConfig& c_;
  std::optional<DType> dtype_;
  DecoderCut cut_;
  bool reading_ = false;
  std::vector<float> wide_;
};

}  // namespace

DecoderWeights::DecoderWeights(DecoderSource& source, std::optional<DType> dtype, const DecoderCut& cut) {
  require(!dtype || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, ErrorKind::bad_dtype,
          "decoder", "got weights of ", dtype.value_or(DType::f32), "; they are f32, bf16, f16 or as stored");
  Loader(source, dtype, cut).load(*this);
}

bool DecoderWeights::in_parts() const {
  bool some = embed.in_parts() || head.in_parts();
  for (const DecoderLayer& l : layers)
    l.each_product([&](const ProductWeights& p) {
      for (const StoredMatrix& m : p.matrices) some |= m.in_parts();
    });
  return some;
}

std::uint64_t DecoderWeights::fingerprint() const {
  std::uint64_t state = 1;
  const auto mix = [&](std::uint64_t word) {
    state = (state ^ word) * 0xff51afd7ed558ccdu;
    state ^= state >> 32;
  };
  const auto tensor = [&](const Tensor& t) {
    if (!t.view().given()) return mix(0);
    for (const float x : t.values<const float>()) mix(std::bit_cast<std::uint32_t>(x));
  };
  const auto norms = [&](const NormWeights& n) { tensor(n.weight), tensor(n.bias); };
  mix(embed.fingerprint()), mix(head.fingerprint()), tensor(positions), norms(norm);
  for (const DecoderLayer& l : layers) {
    l.each_norm(norms);
    l.each_product([&](const ProductWeights& p) {
      tensor(p.bias);
      for (const StoredMatrix& m : p.matrices) mix(m.fingerprint());
    });
    tensor(l.q_norm), tensor(l.k_norm);
  }
  return state;
}

}  // namespace headwise
