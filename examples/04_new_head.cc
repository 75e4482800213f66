// A head of your own: every head learns how sharply it looks. In headwise/heads the same file would be
// complete.
#include <cmath>
#include <iostream>

#include "headwise/headwise.h"
namespace hw = headwise;

struct Sharp {
  static constexpr std::string_view name = "sharp";
  static constexpr std::string_view meets = "in W_O alone";
  struct Config {
    hw::Index heads = 8, dim = 0;
  };
  static constexpr auto fields =
      hw::Fields{hw::Field{"heads", &Config::heads, "number of heads"},
                 hw::Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"}};
  static Config as_mha(hw::Index heads, hw::Index dim) { return {heads, dim}; }

  Sharp(Config c, hw::ParamSet& params, hw::Place place) : config_(c) {
    config_.dim = hw::dim_of(name, c.heads, c.dim, place);
    const double start = 1 / std::sqrt(static_cast<double>(config_.dim));
    scale_ = params.add("scale", {c.heads}, hw::Init::constant(start));
  }
  const Config& config() const { return config_; }
  hw::Widths widths() const { return hw::Widths::same(config_.heads * config_.dim); }
  hw::HeadSpec spec() const {
    const auto split = hw::HeadLayout::split(config_.heads, config_.dim);
    return {.q = split, .k = split, .v = split};
  }
  void bind(hw::HeadInputs& in, hw::HeadGrads& grads) const {
    in.scale = scale_.value();    // the learned values go in,
    grads.scale = scale_.grad();  // and their gradients are added here
  }

 private:
  Config config_;
  hw::Learned scale_;  // [heads]
};
static_assert(hw::Head<Sharp>);

int main() {
  hw::Context ctx;
  hw::ParamSet params;
  const hw::AnyHead head(Sharp(hw::parse_config<Sharp>("heads=4"), params, {.model_dim = 32}));
  const hw::Tensor x = hw::random_normal({2, 10, 32}, hw::DType::f32, 1);
  hw::AttentionProblem sizes;
  sizes.batch = 2, sizes.q_tokens = sizes.kv_tokens = 10;
  hw::HeadRun run(head, sizes, /*keep=*/false);
  hw::Arena count = hw::Arena::measuring();
  run.book(count);
  const hw::Buffer memory(count.used());
  hw::Arena arena(memory.span());
  run.book(arena);
  run.call.x = run.call.x_kv = run.call.q = run.call.k = run.call.v = x.view();
  run.forward(ctx);
  std::cout << head.settings() << "\ngives " << run.call.y << " and learns " << params.count()
            << " numbers\n";
}
