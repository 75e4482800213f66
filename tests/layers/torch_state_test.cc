// Parameters in torch's names and in fused orders: written, read back, refused in words.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/layers/transformer/torch_state.h"

#include <unistd.h>

#include <filesystem>

#include "headwise/layers/transformer/transformer.h"
#include "headwise/model/safetensors.h"
#include "tests/layers/check.h"

namespace headwise {
namespace {

using namespace test;

ConstView find_in(const std::vector<StateTensor>& all, const std::string& name) {
  for (const StateTensor& t : all)
    if (t.name == name) return t.value.view();
  return {};
}

TEST(TorchState, NamesAreTorchs) {
  ParamSet params(DType::f32, 1);
  const Stack stack(params, "stack",
                    {.block = {.heads = "gqa:heads=4,kv_heads=2,dim=3",
                               .cross = Cross::attention,
                               .model_dim = 6,
                               .feed_dim = 8},
                     .depth = 2});
  const std::vector<StateTensor> all = to_torch(params);
  const std::pair<const char*, std::vector<Index>> want[] = {
      {"layers.0.self_attn.in_proj_weight", {24, 6}},
      {"layers.1.self_attn.in_proj_bias", {24}},
      {"layers.0.self_attn.out_proj.weight", {6, 12}},
      {"layers.1.multihead_attn.in_proj_weight", {24, 6}},
      {"layers.0.multihead_attn.out_proj.bias", {6}},
      {"layers.0.linear1.weight", {8, 6}},
      {"layers.1.linear2.bias", {6}},
      {"layers.0.norm1.weight", {6}},
      {"layers.1.norm3.bias", {6}},
      {"norm.weight", {6}}};
  for (const auto& [name, sizes] : want) {
    const ConstView v = find_in(all, name);
    ASSERT_TRUE(v.given()) << name;
    ASSERT_EQ(v.rank, static_cast<int>(sizes.size())) << name;
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) EXPECT_EQ(v.size[axis], sizes[axis]) << name;
  }
  EXPECT_EQ(all.size(), 2u * (4 + 4 + 4 + 6) + 2);
  // Row 12 of in_proj_weight is row 0 of W_K.
  const AnyView k = params.find("stack.layers.0.attention.k.weight").value();
  for (Index c = 0; c < 6; ++c) EXPECT_EQ(value(find_in(all, want[0].first), 12 * 6 + c), value(k, c));
}

TEST(TorchState, SafetensorsCarryItThereAndBack) {
  const BlockOptions options{.heads = "mha:heads=2,dim=3", .model_dim = 6, .feed_dim = 8};
  ParamSet from(DType::f32, 1), to(DType::f32, 2);
  const Block a(from, "block", options), b(to, "block", options);
  const std::string path =
      (std::filesystem::temp_directory_path() / text("headwise_state_", ::getpid())).string();
  const std::vector<StateTensor> all = to_torch(from);
  std::vector<NamedTensor> items;
  for (const StateTensor& t : all) items.push_back({t.name, t.value.view()});
  write_safetensors(path, items);
  Safetensors file(path);
  from_torch(to, [&](const std::string& name) { return file.has(name) ? file.view(name) : ConstView{}; });
  std::filesystem::remove(path);
  for (const Param& p : from.all()) EXPECT_TRUE(same_bits(p.value, to.find(p.name).value())) << p.name;
}

TEST(QkvOrder, EveryOrderLoadsWhatItSaves) {
  struct Case {
    QkvOrder order;
    std::string heads;
    QkvSizes sizes;
  };
  for (const Case& c : {Case{QkvOrder::qkv, "gqa:heads=4,kv_heads=2,dim=3", {4, 2, 3, 3}},
                        Case{QkvOrder::per_head, "mha:heads=4,dim=3", {4, 4, 3, 3}},
                        Case{QkvOrder::per_group, "gqa:heads=4,kv_heads=2,dim=3", {4, 2, 3, 3}}}) {
    ParamSet from(DType::f32, 1), to(DType::f32, 2);
    const MultiHead a(from, "attention", c.heads, {.model_dim = 5}),
        b(to, "attention", c.heads, {.model_dim = 5});
    for (const char* kind : {"weight", "bias"})
      load_fused_qkv(to, "attention", kind, c.order, c.sizes,
                     fused_qkv(from, "attention", kind, c.order, c.sizes).view());
    for (const char* part : {"q", "k", "v"})
      EXPECT_TRUE(same_bits(from.find(text("attention.", part, ".weight")).value(),
                            to.find(text("attention.", part, ".weight")).value()));
  }
  // Two groups of two queries, one key and one value each, head_dim 1 and value_dim 2.
  EXPECT_EQ(qkv_rows(QkvOrder::per_group, {4, 2, 1, 2}), (std::vector<Index>{0, 1, 4, 6, 7, 2, 3, 5, 8, 9}));
  EXPECT_EQ(qkv_rows(QkvOrder::per_head, {2, 2, 1, 1}), (std::vector<Index>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(
      error_of([] {
        qkv_rows(QkvOrder::per_head, {4, 2, 1, 1});
      }),
      "torch_state: the order per_head needs a k and v for each of 4 heads but there are 2; use per_group");
}

}  // namespace
}  // namespace headwise
