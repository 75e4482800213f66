// hw.Probe and hw.Scores as a ProbeSpec, and the arrays their answers go to.
#include "python/arrays/values.h"
#include "python/attention/call.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "probe";

struct RowStatistic {
  const char* name;
  AnyView ProbeOut::*view;
  bool position = false;
};
constexpr RowStatistic kRowStatistics[] = {{"entropy", &ProbeOut::entropy},
                                           {"top_weight", &ProbeOut::top_weight},
                                           {"top_position", &ProbeOut::top_position, true},
                                           {"second_moment", &ProbeOut::second_moment},
                                           {"mean_distance", &ProbeOut::mean_distance},
                                           {"sink_mass", &ProbeOut::sink_mass}};
constexpr unsigned kAllRows = (1u << std::size(kRowStatistics)) - 1;

unsigned row_named(nb::handle name) {
  const std::string_view word = read_word({kOp, "a name in rows"}, name);
  std::string known;
  for (unsigned i = 0; i < std::size(kRowStatistics); ++i) {
    if (word == kRowStatistics[i].name) return 1u << i;
    known += text(i ? ", " : "", kRowStatistics[i].name);
  }
  throw Error(ErrorKind::bad_argument, text(kOp, ": rows names \"", word, "\"; there are ", known));
}

/// True (all), False, a name or names.
unsigned read_rows(nb::handle rows) {
  if (PyUnicode_Check(rows.ptr())) return row_named(rows);
  if (!PySequence_Check(rows.ptr())) return read_bool({kOp, "rows"}, rows) ? kAllRows : 0;
  unsigned asked = 0;
  for (const nb::handle name : nb::borrow<nb::object>(rows)) asked |= row_named(name);
  return asked;
}

ScoreStage stage_of(nb::handle stage) {
  constexpr const char* names[] = {"scaled", "softcapped", "biased", "weights"};
  if (PyUnicode_Check(stage.ptr())) {
    const std::string_view word = read_word({kOp, "stage"}, stage);
    for (int i = 0; i < 4; ++i)
      if (word == names[i]) return static_cast<ScoreStage>(i);
    throw Error(ErrorKind::bad_argument,
                text(kOp, ": stage is \"", word, "\"; give scaled, softcapped, biased or weights"));
  }
  const Index n = read_index({kOp, "stage"}, stage);
  require(n >= 0 && n <= 3, ErrorKind::bad_argument, kOp, "stage is ", n,
          "; give 0 (scaled), 1 (softcapped), 2 (biased) or 3 (weights)");
  return static_cast<ScoreStage>(n);
}

/// [kv_tokens] or [batch kv_tokens]; ids outside 0..classes-1 are counted nowhere.
void read_classes(nb::handle ids, nb::handle number, ProbeRequest& request) {
  const Array a = read_array(kOp, "classes", ids);
  const AnyView& v = a.view;
  require(v.dtype == DType::i32 || v.dtype == DType::i64, ErrorKind::bad_dtype, kOp, "classes are ", v,
          "; give int32 or int64 token classes");
  require(v.rank == 1 || v.rank == 2, ErrorKind::bad_shape, kOp, "classes are ", v,
          "; give [kv_tokens] or [batch kv_tokens]");
  request.class_rows = v.rank == 2 ? v.size[0] : 1;
  request.class_columns = v.size[v.rank - 1];
  Index largest = -1;
  for (Index row = 0; row < request.class_rows; ++row)
    for (Index column = 0; column < request.class_columns; ++column) {
      const Index offset = (v.rank == 2 ? row * v.step[0] : 0) + column * v.step[v.rank - 1];
      const Index id = v.dtype == DType::i64 ? static_cast<const Index*>(v.data)[offset]
                                             : static_cast<const std::int32_t*>(v.data)[offset];
      const bool fits = 0 <= id && id <= std::numeric_limits<std::int32_t>::max();
      request.class_of.push_back(fits ? static_cast<std::int32_t>(id) : -1);
      largest = max_of(largest, id);
    }
  request.spec.classes = number.is_none() ? largest + 1 : read_index({kOp, "num_classes"}, number);
  require(request.spec.classes >= 1, ErrorKind::bad_argument, kOp, "num_classes is ", request.spec.classes,
          "; there must be a class from 0 up");
}

void read_picks(nb::handle picks, ProbeRequest& request) {
  for (const nb::handle row : nb::borrow<nb::object>(picks)) {
    const auto place = read_indices({kOp, "a row of picks"}, row);
    require(place.size() == 3, ErrorKind::bad_shape, kOp, "a row of picks has ", place.size(),
            " numbers; give (batch, head, query)");
    request.picks.insert(request.picks.end(), place.begin(), place.end());
  }
  request.spec.picked = static_cast<Index>(request.picks.size() / 3);
}

}  // namespace

ProbeRequest read_probe(nb::handle probe) {
  ProbeRequest request;
  if (nb::hasattr(probe, "stage")) {
    request.spec.scores = stage_of(probe.attr("stage"));
    return request;
  }
  if (!nb::hasattr(probe, "rows") || !nb::hasattr(probe, "picks"))
    refuse_type({"attention", "probe"}, probe, "a headwise.Probe or headwise.Scores");
  request.rows = read_rows(probe.attr("rows"));
  request.spec.rows = request.rows != 0;
  request.spec.top_k = read_index({kOp, "top_k"}, probe.attr("top_k"));
  request.spec.columns = read_bool({kOp, "columns"}, probe.attr("columns"));
  if (const nb::object ids = probe.attr("classes"); !ids.is_none())
    read_classes(ids, probe.attr("num_classes"), request);
  if (const nb::object picks = probe.attr("picks"); !picks.is_none()) read_picks(picks, request);
  return request;
}

nb::object make_probe_result(const AttentionProblem& p, unsigned row_names, const ArrayKind& kind,
                             nb::handle like, ProbeOut& out) {
  const nb::object result = nb::module_::import_("headwise._types").attr("ProbeResult")();
  const ProbeSpec& asked = p.probe;
  const DType wide = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Index heads = p.heads.q.heads, batch = p.ragged ? 1 : p.batch;
  const Index rows = p.ragged ? p.q_total : p.q_tokens, columns = p.ragged ? p.kv_total : p.kv_tokens;
  // Ragged answers have no batch axis: Python sees [heads tokens ...], the kernel the same memory with a
  // batch of 1.
  const auto make = [&](const char* name, AnyView& view, DType dtype, std::vector<Index> sizes,
                        bool per_token = true) {
    const std::size_t skip = p.ragged && per_token ? 1 : 0;
    MadeArray made = make_array(kind, like, dtype, std::span<const Index>(sizes).subspan(skip));
    view.data = made.view.data;
    view.device = made.view.device;
    view.dtype = dtype;
    view.rank = static_cast<int>(sizes.size());
    Index step = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      view.size[axis] = sizes[static_cast<std::size_t>(axis)];
      view.step[axis] = step;
      step *= view.size[axis];
    }
    nb::setattr(result, name, made.object);
  };
  for (unsigned i = 0; i < std::size(kRowStatistics); ++i)
    if (const RowStatistic& s = kRowStatistics[i]; row_names >> i & 1u)
      make(s.name, out.*s.view, s.position ? DType::i64 : wide, {batch, heads, rows});
  if (asked.top_k > 0) {
    make("top_keys", out.top_keys, DType::i64, {batch, heads, rows, asked.top_k});
    make("top_weights", out.top_weights, wide, {batch, heads, rows, asked.top_k});
  }
  if (asked.classes > 0) make("class_mass", out.class_mass, wide, {batch, heads, rows, asked.classes});
  if (asked.columns) make("column_sums", out.column_sums, wide, {batch, heads, columns});
  if (asked.picked > 0) make("picked_weights", out.picked_weights, wide, {asked.picked, p.kv_tokens}, false);
  if (asked.scores != ScoreStage::none)
    make("scores", out.scores, wide, {p.batch, heads, p.q_tokens, p.kv_tokens}, false);
  return result;
}

}  // namespace headwise::python
