#include "headwise/layers/basic/team_rows.h"

#include "headwise/distributed/communicator.h"

namespace headwise {
namespace {

constexpr std::string_view kWhat = "rows of a gradient";

/// One product of those that lie side by side: dy [rows columns] in memory of its own.
void one_gradient(const AnyView& dy, const AnyView& x, const AnyView& dweight, const AnyView& dbias,
                  Call& call) {
  const Communicator& team = *call.rows_team;
  const Slice own = slice_of(dy.size[1], team.rank(), team.ranks());
  AnyView columns = rows_of_team(dy, call, kWhat);
  columns.data = static_cast<std::byte*>(columns.data) + own.begin * columns.step[1] * size_of(columns.dtype);
  columns.size[1] = own.size;
  const AnyView mine = part_of_rows(dweight, own), bias = part_of_rows(dbias, own);
  if (own.size > 0)
    projection_backward({.dy = columns, .x = x, .dweight = mine, .dbias = bias, .parts = call.training},
                        call.ctx);
  if (dweight.given()) team.gather(mine, dweight, 0, "a gradient");
  if (dbias.given()) team.gather(bias, dbias, 0, "a gradient");
}

}  // namespace

AnyView rows_of_team(const AnyView& own, Call& call, std::string_view what) {
  if (call.rows_team == nullptr || !own.given()) return own;
  const AnyView whole = call.memory.take(own.dtype, {call.sequences.rows(), own.size[1]});
  call.rows_team->gather(own, whole, 0, what);
  return whole;
}

void parameter_gradients(const ProjectionGrads& g, Call& call) {
  if (!g.dweight.given() && !g.dbias.given()) return;
  if (call.rows_team == nullptr) return projection_backward(g, call.ctx);
  const Scratch scratch(call.memory);
  const AnyView x = rows_of_team(g.x, call, kWhat);
  const Index rows = g.dy.size[0], parts = g.dy.rank == 3 ? g.dy.size[1] : 1,
              columns = g.dy.size[g.dy.rank - 1];
  for (Index p = 0; p < parts; ++p) {
    const Index at = parts > 1 ? p * g.dy.step[1] * size_of(g.dy.dtype) : 0;
    const AnyView dy = AnyView::packed(static_cast<std::byte*>(g.dy.data) + at, g.dy.dtype, {rows, columns});
    const Slice part{p * columns, columns};
    one_gradient(dy, x, part_of_rows(g.dweight, part), part_of_rows(g.dbias, part), call);
  }
}

}  // namespace headwise
