#include "headwise/layers/transformer/torch_state.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "torch_state";

const Param* param_named(const ParamSet& params, const std::string& name) {
  for (const Param& p : params.all())
    if (p.name == name) return &p;
  return nullptr;
}
bool ends_with(const std::string& s, std::string_view end) {
  return s.size() >= end.size() && std::string_view(s).substr(s.size() - end.size()) == end;
}
std::string with_segment(std::string s, std::string_view ours, std::string_view theirs) {
  for (std::size_t at = 0; (at = s.find(ours, at)) != std::string::npos; at += theirs.size())
    if (at == 0 || s[at - 1] == '.') s.replace(at, ours.size(), theirs);
  return s;
}

Index columns_of(const ViewForm& v) { return v.rank == 2 ? v.size[1] : 1; }

void copy_items(const ConstView& from, Index from_row, const AnyView& to, Index to_row, Index rows) {
  const Index columns = columns_of(to), step = from.rank == 2 ? from.step[1] : 0;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c)
      store_double(to.data, to.dtype, (to_row + r) * to.step[0] + (to.rank == 2 ? c * to.step[1] : 0),
                   load_double(from.data, from.dtype, (from_row + r) * from.step[0] + c * step));
}

Tensor make(DType dtype, Index rows, const ViewForm& like) {
  return like.rank == 2 ? Tensor(dtype, {rows, like.size[1]}) : Tensor(dtype, {rows});
}

}  // namespace

TorchRows torch_place(const ParamSet& params, const Param& param) {
  const std::size_t dot = param.name.find('.');
  require(dot != std::string::npos, ErrorKind::bad_argument, kOp, "parameter ", param.name,
          " stands in no layer; only layers of attention, feed-forward and norms have torch's names");
  // A trailing dot ends every segment, so that whole segments are replaced.
  std::string name = param.name.substr(dot + 1);
  name = with_segment(name, "attention.", "self_attn.");
  name = with_segment(name, "cross.", "multihead_attn.");
  name = with_segment(name, "feed.in.", "linear1.");
  name = with_segment(name, "feed.out.", "linear2.");
  name = with_segment(name, "out.", "out_proj.");
  TorchRows place{name, 0, param.value.size[0]};
  const char* kinds[] = {"weight", "bias"};
  for (const char* kind : kinds)
    for (const char* part : {"q", "k", "v"}) {
      const std::string tail = text(part, ".", kind);
      if (!ends_with(name, tail) || (name.size() > tail.size() && name[name.size() - tail.size() - 1] != '.'))
        continue;
      const std::string ours = param.name.substr(0, param.name.size() - tail.size()),
                        theirs = name.substr(0, name.size() - tail.size());
      bool one_width = true;
      Index rows = 0, first = 0;
      for (const char* other : {"q", "k", "v"}) {
        const Param* p = param_named(params, text(ours, other, ".", kind));
        if (!p) return place;
        one_width = one_width && columns_of(p->value) == columns_of(param.value);
        if (other[0] == part[0]) first = rows;
        rows += p->value.size[0];
      }
      if (!one_width) return {text(theirs, part, "_proj_weight"), 0, param.value.size[0]};
      return {text(theirs, "in_proj_", kind), first, rows};
    }
  return place;
}

std::vector<StateTensor> to_torch(const ParamSet& params) {
  std::vector<StateTensor> all;
  for (const Param& p : params.all()) {
    const TorchRows place = torch_place(params, p);
    StateTensor* to = nullptr;
    for (StateTensor& t : all)
      if (t.name == place.name) to = &t;
    if (!to) to = &all.emplace_back(StateTensor{place.name, make(p.value.dtype, place.rows, p.value)});
    copy_items(p.value, 0, to->value.view(), place.first_row, p.value.size[0]);
  }
  return all;
}

void from_torch(ParamSet& params, const Callable<ConstView(const std::string&)>& find) {
  for (const Param& p : params.all()) {
    const TorchRows place = torch_place(params, p);
    const ConstView v = find(place.name);
    require(v.given(), ErrorKind::bad_argument, kOp, place.name, " is missing; ", p.name, " is read from it");
    require(v.rank == p.value.rank && v.size[0] == place.rows && columns_of(v) == columns_of(p.value) &&
                is_float(v.dtype),
            ErrorKind::bad_shape, kOp, place.name, " is ", v, " but ", place.rows, " rows of ",
            columns_of(p.value), " numbers are needed; make the layer with the sizes of the state");
  }
  for (Param& p : params.all()) {
    const TorchRows place = torch_place(params, p);
    copy_items(find(place.name), place.first_row, p.value, 0, p.value.size[0]);
  }
}

std::vector<Index> qkv_rows(QkvOrder order, const QkvSizes& s) {
  require(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0, ErrorKind::bad_shape, kOp, "heads (",
          s.heads, ") must be a multiple of kv_heads (", s.kv_heads, "); change one of them");
  require(order != QkvOrder::per_head || s.heads == s.kv_heads, ErrorKind::bad_shape, kOp,
          "the order per_head needs a k and v for each of ", s.heads, " heads but there are ", s.kv_heads,
          "; use per_group");
  const Index q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim, group = s.heads / s.kv_heads;
  std::vector<Index> rows;
  const auto add = [&](Index first, Index count) {
    for (Index i = 0; i < count; ++i) rows.push_back(first + i);
  };
  if (order == QkvOrder::qkv) {
    add(0, q + k + s.kv_heads * s.value_dim);
    return rows;
  }
  for (Index g = 0; g < s.kv_heads; ++g) {
    add(g * group * s.head_dim, group * s.head_dim);
    add(q + g * s.head_dim, s.head_dim);
    add(q + k + g * s.value_dim, s.value_dim);
  }
  return rows;
}

namespace {

/// Calls visit(parameter, its row, row of the fused matrix) for every row.
template <class Visit>
void each_row(const ParamSet& params, std::string_view name, const char* kind, QkvOrder order,
              const QkvSizes& sizes, const Visit& visit) {
  const Param* parts[3];
  Index first[4] = {0};
  for (int i = 0; i < 3; ++i) {
    const std::string full = text(name, ".", "qkv"[i], ".", kind);
    parts[i] = param_named(params, full);
    require(parts[i] != nullptr, ErrorKind::bad_argument, kOp, "there is no parameter ", full);
    first[i + 1] = first[i] + parts[i]->value.size[0];
  }
  const std::vector<Index> rows = qkv_rows(order, sizes);
  require(static_cast<Index>(rows.size()) == first[3], ErrorKind::bad_shape, kOp, name, " has ", first[3],
          " rows but ", sizes.heads, " heads with ", sizes.kv_heads, " kv heads of ", sizes.head_dim, " and ",
          sizes.value_dim, " make ", rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int part = rows[i] < first[1] ? 0 : rows[i] < first[2] ? 1 : 2;
    visit(*parts[part], rows[i] - first[part], static_cast<Index>(i));
  }
}

}  // namespace

Tensor fused_qkv(const ParamSet& params, std::string_view name, const char* kind, QkvOrder order,
                 const QkvSizes& sizes) {
  const Param* q = param_named(params, text(name, ".q.", kind));
  require(q != nullptr, ErrorKind::bad_argument, kOp, "there is no parameter ", name, ".q.", kind);
  Tensor fused = make(q->value.dtype, static_cast<Index>(qkv_rows(order, sizes).size()), q->value);
  each_row(params, name, kind, order, sizes, [&](const Param& p, Index row, Index at) {
    require(columns_of(p.value) == columns_of(q->value), ErrorKind::bad_shape, kOp, p.name, " is ", p.value,
            " but ", q->name, " is ", q->value, "; only matrices of one width are fused");
    copy_items(p.value, row, fused.view(), at, 1);
  });
  return fused;
}

void load_fused_qkv(ParamSet& params, std::string_view name, const char* kind, QkvOrder order,
                    const QkvSizes& sizes, const InputView& fused) {
  const auto total = static_cast<Index>(qkv_rows(order, sizes).size());
  each_row(params, name, kind, order, sizes, [&](const Param& p, Index, Index) {
    require(fused.rank == p.value.rank && fused.size[0] == total && columns_of(fused) == columns_of(p.value),
            ErrorKind::bad_shape, kOp, "the fused ", kind, " is ", fused, " but ", total, " rows of ",
            columns_of(p.value), " numbers are needed");
  });
  each_row(params, name, kind, order, sizes,
           [&](const Param& p, Index row, Index at) { copy_items(fused, at, p.value, row, 1); });
}

}  // namespace headwise
