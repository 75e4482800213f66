#include "headwise/train/steps/cut_params.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/train/steps/param_blocks.h"

namespace headwise {
namespace {

constexpr const char* kOp = "ranks";

void check_pair(const std::string& whole, const std::string& mine) {
  require(whole == mine, ErrorKind::bad_argument, kOp, "the whole model has ", whole,
          " where the cut one has ", mine, "; make both of one config");
}

}  // namespace

CutParams::CutParams(ParamSet& whole, ParamSet& mine, const Communicator& team)
    : whole_(whole), mine_(mine), team_(team) {
  require(whole.all().size() == mine.all().size(), ErrorKind::bad_argument, kOp, "the whole model has ",
          whole.all().size(), " parameters and the cut one ", mine.all().size(), "; make both of one config");
  for (std::size_t i = 0; i < mine.all().size(); ++i) check_pair(whole.all()[i].name, mine.all()[i].name);
  take_slices(whole, mine, team);
}

void CutParams::join() const {
  for (std::size_t i = 0; i < mine_.all().size(); ++i)
    join_slices(mine_.all()[i].name, mine_.all()[i].value, whole_.all()[i].value, team_);
}

Optimizer CutParams::joined(const Optimizer& mine) const {
  join();
  Optimizer whole = mine.like(whole_);
  const std::vector<Optimizer::Moment> from = mine.moments(), to = whole.moments();
  for (std::size_t i = 0; i < from.size(); ++i) {
    check_pair(to[i].name, from[i].name);
    join_slices(from[i].name, from[i].value, to[i].value, team_);
  }
  whole.set_steps(mine.steps());
  return whole;
}

void CutParams::take(const Optimizer& whole, Optimizer& mine) const {
  take_slices(whole_, mine_, team_);
  const std::vector<Optimizer::Moment> from = whole.moments(), to = mine.moments();
  for (std::size_t i = 0; i < from.size(); ++i) {
    check_pair(from[i].name, to[i].name);
    take_slice(to[i].name, from[i].value, to[i].value, team_);
  }
  mine.set_steps(whole.steps());
}

/// A gradient as cells: each of its first two axes in leaves, so that a cut along either holds whole cells.
struct CutParams::Grid {
  Index leaves[2] = {1, 1};  // of the whole tensor
  Index own[2] = {1, 1};     // of this rank
  Index first[2] = {0, 0};   // its first ones
  Index cell[2] = {1, 1};    // rows of a cell; numbers of one of its rows
  Index row = 0;             // numbers from one row of this rank's slice to the next

  Grid(const AnyView& whole, const AnyView& mine, const SlicePlace& at) {
    require(at.axis < 2, ErrorKind::unsupported, kOp, "a parameter ", whole, " is cut along axis ", at.axis,
            ", whose norm is not there yet; cut the data instead");
    Index inner = 1;
    for (int a = 2; a < whole.rank; ++a) inner *= whole.size[a];
    for (int a = 0; a < min_of(2, whole.rank); ++a) {
      leaves[a] = leaves_of(whole.size[a]);
      const Index size = whole.size[a] / leaves[a];
      own[a] = mine.size[a] / size, first[a] = a == at.axis ? at.begin / size : 0;
      cell[a] = size;
    }
    cell[1] *= inner;
    row = own[1] * cell[1];
  }
  Index numbers() const { return cell[0] * cell[1]; }
  Index blocks() const { return ceil_div(numbers(), ParamBlocks::kBlock); }
  Index cells() const { return leaves[0] * leaves[1]; }
  Index own_cells() const { return own[0] * own[1]; }
};

/// Of the cells of one slice, block by block.
std::vector<double> CutParams::block_sums(const AnyView& g, const Grid& grid, Context& ctx) const {
  const Index width = size_of(g.dtype), blocks = grid.blocks();
  std::vector<double> sums(static_cast<std::size_t>(grid.own_cells() * blocks));
  ctx.pool().parallel_for(grid.own_cells(), [&](Index cell, int) noexcept {
    const Index at = cell / grid.own[1] * grid.cell[0] * grid.row + cell % grid.own[1] * grid.cell[1];
    const auto* from = static_cast<const std::byte*>(g.data) + at * width;
    alignas(64) std::byte packed[ParamBlocks::kBlock * sizeof(double)];
    for (Index b = 0; b < blocks; ++b) {
      const Index begin = b * ParamBlocks::kBlock, end = min_of(grid.numbers(), begin + ParamBlocks::kBlock);
      for (Index i = begin; i < end;) {
        const Index n = min_of(end - i, grid.cell[1] - i % grid.cell[1]);
        std::memcpy(packed + (i - begin) * width,
                    from + (i / grid.cell[1] * grid.row + i % grid.cell[1]) * width,
                    static_cast<std::size_t>(n * width));
        i += n;
      }
      sums[static_cast<std::size_t>(cell * blocks + b)] = sum_of_squares(g.dtype, packed, end - begin);
    }
  });
  return sums;
}

double CutParams::grad_norm(Context& ctx) const {
  const FloatEnv env;
  double total = 0;
  for (std::size_t i = 0; i < mine_.all().size(); ++i) {
    const Param& p = mine_.all()[i];
    if (p.rate == 0 || p.value.count() == 0) continue;
    const AnyView& whole = whole_.all()[i].value;
    const auto place = [&](int r) { return place_of_slice(p.name, whole, p.value, r, team_.ranks()); };
    const bool cut = place(0).axis >= 0;
    const std::vector<double> mine = block_sums(p.grad, {whole, p.value, place(team_.rank())}, ctx);
    std::vector<double> given = mine;
    if (cut) {
      given.resize(mine.size() * static_cast<std::size_t>(team_.ranks()));
      team_.gather_bytes(mine.data(), given.data(), static_cast<Index>(mine.size() * sizeof(double)), p.name);
    }
    // Into the order of the whole tensor; copies that several ranks hold fall on one place.
    const Grid all(whole, whole, {});
    const auto blocks = static_cast<std::size_t>(all.blocks());
    std::vector<double> sums(static_cast<std::size_t>(all.cells()) * blocks);
    for (int r = 0; r < (cut ? team_.ranks() : 1); ++r) {
      const Grid grid(whole, p.value, place(r));
      const double* from = given.data() + static_cast<std::size_t>(r) * mine.size();
      for (Index c = 0; c < grid.own_cells(); ++c) {
        const Index to = (grid.first[0] + c / grid.own[1]) * all.leaves[1] + grid.first[1] + c % grid.own[1];
        std::copy_n(from + static_cast<std::size_t>(c) * blocks, blocks,
                    sums.data() + static_cast<std::size_t>(to) * blocks);
      }
    }
    for (const double s : sums) total += s;
  }
  return std::sqrt(total);
}

}  // namespace headwise
