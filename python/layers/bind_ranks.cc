// hw.distributed: ranks of MPI or of threads, and what they gather, sum and agree on.
#include "python/layers/ranks.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "headwise/base/version.h"
#include "headwise/distributed/mpi_engine.h"
#include "headwise/distributed/threads_engine.h"
#include "headwise/layers/basic/module.h"
#include "python/arrays/array.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"
#include "python/arrays/values.h"
#include "python/layers/layer_box.h"

namespace headwise::python {
namespace {

constexpr const char* kOp = "distributed";

/// Every communicator there is; read and written with the GIL.
std::vector<CommunicatorBox*>& boxes() {
  static std::vector<CommunicatorBox*> all;
  return all;
}

EngineOptions read_options(const std::string& engine, double seconds, double start_seconds, bool check) {
  require(seconds > 0 && start_seconds > 0, ErrorKind::bad_argument, kOp, "seconds are ", seconds, " and ",
          start_seconds, "; give more than 0");
  return {.engine = engine, .seconds = seconds, .start_seconds = start_seconds, .check = check};
}

nb::object start_ranks(const std::string& engine, std::uintptr_t communicator, double seconds,
                       double start_seconds, bool check) {
  const EngineOptions options = read_options(engine, seconds, start_seconds, check);
  Communicator team;
  {
    const Flight waiting;
    if (communicator == 0) {
      team = Communicator::start(options);
    } else {
      team = Communicator::over(take_mpi(reinterpret_cast<void*>(communicator)), options);
      team.agree("start", {{"version", kVersion}});
    }
  }
  return nb::cast(new CommunicatorBox(std::move(team)), nb::rv_policy::take_ownership);
}

/// work(communicator) on threads; the first error of Python is raised here.
void run_threads(int ranks, const nb::object& work, double seconds, bool check) {
  const EngineOptions options = read_options("", seconds, 60, check);
  const Flight waiting;
  run_ranks(
      ranks,
      [&](Communicator& given) {
        const nb::gil_scoped_acquire gil;
        nb::object box = nb::cast(new CommunicatorBox(std::move(given)), nb::rv_policy::take_ownership);
        CommunicatorBox& mine = *nb::inst_ptr<CommunicatorBox>(box);
        try {
          work(box);
        } catch (...) {
          mine.team = {};  // the others learn that this rank has ended
          throw;
        }
        mine.team = {};
      },
      options);
}

void end_ranks(bool wait) {
  for (CommunicatorBox* box : boxes())
    if (wait)
      box->team = {};
    else  // MPI_Finalize would wait for the other ranks: kept until the process is gone
      static_cast<void>(new Communicator(std::move(box->team)));
}

MadeArray like(const Array& from, nb::handle object, std::span<const Index> sizes) {
  return make_array(from.kind, object, from.view.dtype, sizes);
}
std::span<const Index> sizes_of(const AnyView& v) { return {v.size, static_cast<std::size_t>(v.rank)}; }

nb::object gather(const CommunicatorBox& box, nb::handle slice, int axis) {
  const Array mine = read_array(kOp, "slice", slice);
  if (axis < 0) axis += mine.view.rank;
  require(axis >= 0 && axis < mine.view.rank, ErrorKind::bad_argument, kOp, "axis is ", axis, " of ",
          mine.view, "; give one of its axes");
  std::vector<Index> each(static_cast<std::size_t>(box.team.ranks()));
  {
    const Flight waiting;
    box.team.gather_bytes(&mine.view.size[axis], each.data(), sizeof(Index), "sizes");
  }
  std::vector<Index> sizes(mine.view.size, mine.view.size + mine.view.rank);
  sizes[static_cast<std::size_t>(axis)] = 0;
  for (const Index n : each) sizes[static_cast<std::size_t>(axis)] += n;
  MadeArray whole = like(mine, slice, sizes);
  const Flight waiting;
  box.team.gather(mine.view, whole.view, axis);
  return whole.object;
}

nb::object sum(const CommunicatorBox& box, nb::handle partial, const std::string& order, nb::handle dtype,
               nb::handle ctx) {
  const Array mine = read_array(kOp, "partial", partial);
  const Order how = order_of(order);
  MadeArray out =
      make_array(mine.kind, partial, dtype.is_none() ? mine.view.dtype : read_layer_dtype(kOp, dtype),
                 sizes_of(mine.view));
  run_alone(context_of(kOp, ctx), [&](Context& c) { box.team.sum(mine.view, out.view, how, c); });
  return out.object;
}

nb::object exchange(const CommunicatorBox& box, nb::handle from, int cut_axis) {
  const Array mine = read_array(kOp, "x", from);
  require(mine.view.rank == 2 && (cut_axis == 0 || cut_axis == 1), ErrorKind::bad_shape, kOp, "x is ",
          mine.view, " and cut_axis ", cut_axis, "; give a matrix and axis 0 or 1");
  const int rank = box.team.rank(), ranks = box.team.ranks();
  std::vector<Index> each(static_cast<std::size_t>(ranks));
  {
    const Flight waiting;
    box.team.gather_bytes(&mine.view.size[1 - cut_axis], each.data(), sizeof(Index), "sizes");
  }
  Index sizes[2];
  sizes[cut_axis] = slice_of(mine.view.size[cut_axis], rank, ranks).size;
  sizes[1 - cut_axis] = 0;
  for (const Index n : each) sizes[1 - cut_axis] += n;
  MadeArray to = like(mine, from, sizes);
  const Flight waiting;
  box.team.exchange(mine.view, cut_axis, to.view);
  return to.object;
}

nb::object share(const CommunicatorBox& box, nb::handle x) {
  const Array mine = read_array(kOp, "x", x);
  MadeArray out = like(mine, x, sizes_of(mine.view));
  const Flight waiting;
  copy_rows(mine.view, out.view);
  box.team.share(out.view.data, out.view.count() * size_of(out.view.dtype));
  return out.object;
}

void agree(const CommunicatorBox& box, const std::string& what, const nb::dict& fields) {
  std::vector<AgreeField> said;
  for (const auto& [name, value] : fields) said.push_back({nb::str(name).c_str(), nb::str(value).c_str()});
  const Flight waiting;
  box.team.agree(what, said);
}

nb::dict counted(const CommunicatorBox& box) {
  const Counted& c = box.team.counted();
  nb::dict d;
  d["bytes"] = c.bytes, d["messages"] = c.messages, d["calls"] = c.calls, d["card_bytes"] = c.card_bytes;
  return d;
}

const Communicator* read_team(const char* name, nb::handle h) {
  if (h.is_none()) return nullptr;
  if (!nb::isinstance<CommunicatorBox>(h)) refuse_type({kOp, name}, h, "a Communicator or None");
  return &nb::inst_ptr<CommunicatorBox>(h)->team;
}

void bind_communicator(nb::module_& m) {
  nb::class_<CommunicatorBox>(m, "Communicator", "One rank's way to the others of its team.")
      .def_prop_ro("rank", [](const CommunicatorBox& b) { return b.team.rank(); })
      .def_prop_ro("ranks", [](const CommunicatorBox& b) { return b.team.ranks(); })
      .def_prop_ro(
          "engine", [](const CommunicatorBox& b) { return b.team.engine(); },
          nb::sig("def engine(self) -> str"), "mpi, threads or none.")
      .def_prop_ro("counted", &counted, nb::sig("def counted(self) -> dict[str, int]"),
                   "What this rank has sent since the start: bytes, messages, calls, card_bytes.")
      .def(
          "part",
          [](const CommunicatorBox& b, int first, int count, int step) {
            return nb::cast(new CommunicatorBox(b.team.part(first, count, step)),
                            nb::rv_policy::take_ownership);
          },
          nb::arg("first"), nb::arg("count"), nb::arg("step") = 1,
          nb::sig("def part(self, first: int, count: int, step: int = 1) -> Communicator"),
          "The team of the ranks first, first + step, ...; this rank is one of them. Nothing travels.")
      .def("gather", &gather, nb::arg("slice"), nb::arg("axis") = 0,
           nb::sig("def gather(self, slice: ArrayT, axis: int = 0) -> ArrayT"),
           "The slices of all ranks, joined along an axis. Rank r of R holds [n r // R, n (r + 1) // R).")
      .def("exchange", &exchange, nb::arg("x"), nb::arg("cut_axis"),
           nb::sig("def exchange(self, x: ArrayT, cut_axis: int) -> ArrayT"),
           "Matrices: this rank's rows of all columns become its columns of all rows (cut_axis 1), or back "
           "(0).")
      .def("sum", &sum, nb::arg("partial"), nb::arg("order") = "tree", nb::kw_only(),
           nb::arg("dtype") = nb::none(), nb::arg("ctx") = nb::none(),
           nb::sig("def sum(self, partial: ArrayT, order: str = \"tree\", *, dtype: str | None = None, ctx: "
                   "Context | None = None) -> ArrayT"),
           "The sum over ranks, on every rank. tree: neighbours are added, then neighbouring sums. engine: "
           "the engine's own. dtype: of the sum; a tree of f32 may give f16 or bf16, which travel so.")
      .def("share", &share, nb::arg("x"), nb::sig("def share(self, x: ArrayT) -> ArrayT"),
           "What rank 0 gave, on every rank.")
      .def(
          "agree", &agree, nb::arg("what"), nb::arg("fields"),
          nb::sig("def agree(self, what: str, fields: dict[str, Any]) -> None"),
          "Every rank gives the same fields, or every rank raises with the rank, the field and both values.");
}

void bind_teams(nb::module_& m) {
  nb::class_<TeamsBox>(
      m, "Teams",
      "Who works together: tensor ranks share heads and columns, context ranks the tokens, data "
      "ranks the texts of a step.")
      .def(
          "__init__",
          [](TeamsBox* self, nb::handle tensor, nb::handle context, nb::handle data,
             const std::string& order) {
            const Teams teams{.tensor = read_team("tensor", tensor),
                              .context = read_team("context", context),
                              .data = read_team("data", data),
                              .order = order_of(order)};
            new (self) TeamsBox{teams, nb::borrow(tensor), nb::borrow(context), nb::borrow(data)};
          },
          nb::arg("tensor") = nb::none(), nb::arg("context") = nb::none(), nb::arg("data") = nb::none(),
          nb::kw_only(), nb::arg("order") = "one_rank",
          nb::sig(
              "def __init__(self, tensor: Communicator | None = None, context: Communicator | None = None, "
              "data: Communicator | None = None, *, order: str = \"one_rank\") -> None"),
          "order: one_rank (the bits of one process; forward alone over tensor ranks), tree (the same bits "
          "on 1, "
          "2, 4, 8 ranks) or engine.")
      .def_prop_ro(
          "order", [](const TeamsBox& b) { return std::string(name_of(b.teams.order)); },
          nb::sig("def order(self) -> str"));
}

}  // namespace

CommunicatorBox::CommunicatorBox(Communicator c) : team(std::move(c)) { boxes().push_back(this); }
CommunicatorBox::~CommunicatorBox() { std::erase(boxes(), this); }

const Teams* read_teams(const char* op, nb::handle teams) {
  if (teams.is_none()) return nullptr;
  if (!nb::isinstance<TeamsBox>(teams))
    refuse_type({op, "teams"}, teams, "a headwise.distributed.Teams or None");
  return &nb::inst_ptr<TeamsBox>(teams)->teams;
}

void bind_ranks(nb::module_& m) {
  bind_communicator(m);
  bind_teams(m);
  m.def(
      "start_ranks", &start_ranks, nb::arg("engine"), nb::arg("communicator"), nb::arg("seconds"),
      nb::arg("start_seconds"), nb::arg("check"),
      nb::sig("def start_ranks(engine: str, communicator: int, seconds: float, start_seconds: float, check: "
              "bool) -> Communicator"),
      "See headwise.distributed.start.");
  m.def("run_ranks", &run_threads, nb::arg("ranks"), nb::arg("work"), nb::arg("seconds"), nb::arg("check"),
        nb::sig(
            "def run_ranks(ranks: int, work: Callable[[Communicator], object], seconds: float, check: bool) "
            "-> None"),
        "See headwise.distributed.run.");
  m.def("end_ranks", &end_ranks, nb::arg("wait"), nb::sig("def end_ranks(wait: bool) -> None"),
        "Before the program goes: leaves every team.");
}

}  // namespace headwise::python
