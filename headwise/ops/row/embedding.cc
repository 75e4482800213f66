#include "headwise/ops/row/embedding.h"

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/row/row.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

constexpr Index kTaskTokens = 64, kTaskColumns = 32;

Index id_at(const AnyView& ids, Index t) {
  return ids.dtype == DType::i64 ? static_cast<const std::int64_t*>(ids.data)[t * ids.step[0]]
                                 : static_cast<const std::int32_t*>(ids.data)[t * ids.step[0]];
}

struct NamedView {
  const char* name;
  const AnyView& view;
};
/// `rows` is [tokens dim], `table` [rows dim]; `written` is one of the two.
void check(const char* op, const NamedView& named_table, const AnyView& ids, const NamedView& named_rows,
           double scale, bool writes_table, bool reads_ids = true) {
  const auto& [table_name, table] = named_table;
  const auto& [rows_name, rows] = named_rows;
  require(table.rank == 2 && is_float(table.dtype), ErrorKind::bad_shape, op, table_name, " is ", table,
          "; give [rows dim] of a float type");
  require(ids.rank == 1 && (ids.dtype == DType::i64 || ids.dtype == DType::i32), ErrorKind::bad_shape, op,
          "ids is ", ids, "; give i64 or i32 [tokens]");
  // On a device 16-bit rows have f32 gradients.
  const bool there = writes_table && !reads_ids && is_float(rows.dtype) && table.dtype == DType::f32;
  require(rows.rank == 2 && (there || rows.dtype == table.dtype) && rows.size[0] == ids.size[0] &&
              rows.size[1] == table.size[1],
          ErrorKind::bad_shape, op, rows_name, " is ", rows, "; give ", table.dtype, " [", ids.size[0], " ",
          table.size[1], "], a row an id");
  require(std::isfinite(scale), ErrorKind::bad_argument, op, "scale is ", scale, "; give a finite number");
  check_memory(op, table_name, table);
  check_memory(op, "ids", ids);
  check_memory(op, rows_name, rows);
  const AnyView& written = writes_table ? table : rows;
  const char* name = writes_table ? table_name : rows_name;
  require(each_element_once(written), ErrorKind::bad_argument, op, name, " is ", written,
          " with steps that put several elements in one place; give each its own");
  check_apart(op, written, writes_table ? rows_name : table_name, writes_table ? rows : table, name);
  check_apart(op, written, "ids", ids, name);
  if (!reads_ids) return;
  for (Index t = 0; t < ids.size[0]; ++t)
    require(0 <= id_at(ids, t) && id_at(ids, t) < table.size[0], ErrorKind::bad_argument, op, "ids[", t,
            "] is ", id_at(ids, t), " but ", table_name, " has ", table.size[0],
            " rows; give numbers from 0 to ", table.size[0] - 1);
}

/// On a CUDA device, where nobody can look at ids before they run.
struct There {
  const char* op;
  AnyView table, ids, rows;
  double scale = 1;
  bool backward = false;
};
void run_there(const There& t, Device there, Context& ctx) {
  const auto& [op, table, ids, rows, scale, backward] = t;
  check(op, {backward ? "dtable" : "table", as_checked(table)}, as_checked(ids),
        {backward ? "dout" : "out", as_checked(rows)}, scale, backward, false);
  require(ids.step[0] == 1 || ids.size[0] <= 1, ErrorKind::unsupported, op, "ids is ", ids, " on ", there,
          " with steps; copy them side by side");
  start(cuda::EmbeddingTask{.table = rows_on_device(op, "table", table),
                            .out = rows_on_device(op, "rows", rows),
                            .ids = ids.data,
                            .wide_ids = ids.dtype == DType::i64,
                            .tokens = ids.size[0],
                            .table_rows = table.size[0],
                            .columns = table.size[1],
                            .scale = static_cast<float>(scale),
                            .backward = backward},
        there, ctx.stream());
}

}  // namespace

void embedding(const InputView& table, const InputView& ids, double scale, const AnyView& out, Context& ctx) {
  const Device there = device_of("embedding", {{"table", table}, {"ids", ids}, {"out", out}});
  if (!there.is_cpu()) return run_there({"embedding", table, ids, out, scale, false}, there, ctx);
  check("embedding", {"table", table}, ids, {"out", out}, scale, false);
  const FloatEnv env;
  const Index tokens = ids.size[0], dim = table.size[1];
  visit_float(table.dtype, [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(ceil_div(tokens, kTaskTokens), [&](Index task, int) noexcept {
      for (Index t = task * kTaskTokens; t < min_of(tokens, (task + 1) * kTaskTokens); ++t) {
        const T* from = static_cast<const T*>(table.data) + id_at(ids, t) * table.step[0];
        T* to = static_cast<T*>(out.data) + t * out.step[0];
        for (Index c = 0; c < dim; ++c)
          to[c * out.step[1]] = cpu::narrow<T>(cpu::widen(from[c * table.step[1]]) * scale);
      }
    });
  });
}

void embedding_backward(const InputView& dout, const InputView& ids, double scale, const AnyView& dtable,
                        Context& ctx) {
  constexpr const char* kBack = "embedding_backward";
  const Device there = device_of(kBack, {{"dtable", dtable}, {"ids", ids}, {"dout", dout}});
  if (!there.is_cpu()) return run_there({kBack, dtable, ids, dout, scale, true}, there, ctx);
  check(kBack, {"dtable", dtable}, ids, {"dout", dout}, scale, true);
  const FloatEnv env;
  const Index tokens = ids.size[0], dim = dtable.size[1];
  // A task owns columns, so that each sum runs over all tokens in one thread.
  visit_float(dtable.dtype, [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(ceil_div(dim, kTaskColumns), [&](Index task, int) noexcept {
      const Index begin = task * kTaskColumns, end = min_of(dim, begin + kTaskColumns);
      for (Index t = 0; t < tokens; ++t) {
        const T* from = static_cast<const T*>(dout.data) + t * dout.step[0];
        T* to = static_cast<T*>(dtable.data) + id_at(ids, t) * dtable.step[0];
        for (Index c = begin; c < end; ++c) {
          T& sum = to[c * dtable.step[1]];
          sum = cpu::narrow<T>(cpu::widen(sum) + cpu::widen(from[c * dout.step[1]]) * scale);
        }
      }
    });
  });
}

}  // namespace headwise
