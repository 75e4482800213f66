#include "headwise/intent/training/option_checks.h"

namespace headwise {
namespace {

constexpr const char* kOp = "train";

}  // namespace

void check_options(const TrainingOptions& o) {
  constexpr Index kMost = Index{1} << 20;  // so that steps and examples of a run can be counted
  require(o.epochs > 0 && o.batch > 0, ErrorKind::bad_argument, kOp, "epochs is ", o.epochs, " and batch ",
          o.batch, "; give 1 or more of each");
  require(o.epochs <= kMost && o.batch <= kMost, ErrorKind::bad_argument, kOp, "epochs is ", o.epochs,
          " and batch ", o.batch, "; give at most ", kMost, " of each");
  require(o.layer_decay > 0 && o.layer_decay <= 1, ErrorKind::bad_argument, kOp, "layer_decay is ",
          o.layer_decay, "; give a factor above 0 and up to 1");
  require(o.compute == DType::f32 || o.compute == DType::bf16, ErrorKind::bad_dtype, kOp, "compute is ",
          o.compute, "; give f32 or bf16");
  require(o.gate_price >= 0 && o.gate_price < 1e6, ErrorKind::bad_argument, kOp, "gate_price is ",
          o.gate_price, "; give 0 or more");
  require(o.may_lose >= 0 && o.may_lose < 1, ErrorKind::bad_argument, kOp, "may_lose is ", o.may_lose,
          "; give a share from 0 and below 1");
  require(o.micro_batches == 0 || o.batch % o.micro_batches == 0, ErrorKind::bad_argument, kOp, "batch is ",
          o.batch, " in ", o.micro_batches, " parts; give a multiple of them");
  require(o.device.is_cpu() || (!o.tensor && !o.data), ErrorKind::unsupported, kOp, "the device is ",
          o.device, ", where a recogniser learns on one rank; leave out the ranks, or the device");
  if (!o.tensor) return;
  require(o.compute == DType::f32, ErrorKind::unsupported, kOp, "compute is ", o.compute,
          ", whose sums over ", o.tensor->tensor ? "tensor" : "context",
          " ranks are not there yet; give f32");
  if (!o.tensor->tensor) return;
  require(o.tensor->order == Order::tree, ErrorKind::unsupported, kOp, "blocks are cut in order ",
          name_of(o.tensor->order), "; training over tensor ranks is in order tree");
}

void check_cut(const RecognizerConfig& c, const Teams& teams) {
  const std::string team = teams.tensor ? "tensor" : "context";
  require(!c.learn_gates && c.planted.empty(), ErrorKind::unsupported, kOp,
          "learnt gates and designed heads are not there over ", team,
          " ranks; leave out --gates and --plant, or --", team);
  require(!c.cuts.on, ErrorKind::unsupported, kOp, "compound intents that are cut are not learnt over ", team,
          " ranks yet; leave out --", team);
}

}  // namespace headwise
