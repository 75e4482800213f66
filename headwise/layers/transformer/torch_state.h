// torch_state: parameters under the names and forms of PyTorch's Transformer modules, written and read.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/base/callable.h"
#include "headwise/base/param.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Rows of one tensor of a state_dict that hold one of our parameters.
struct TorchRows {
  std::string name;
  Index first_row = 0, rows = 0;  // rows: of the whole tensor
};

/// Where `param` lies in the state_dict of nn.MultiheadAttention, nn.TransformerEncoderLayer,
/// nn.TransformerDecoderLayer, nn.TransformerEncoder or nn.TransformerDecoder; the first segment of our
/// names, the layer's own, falls away. W_Q, W_K and W_V are rows of in_proj_weight where they read one width,
/// q_proj_weight and its like otherwise; biases are rows of in_proj_bias.
TorchRows torch_place(const ParamSet& params, const Param& param);

struct StateTensor {
  std::string name;
  Tensor value;
};
/// Every parameter as a state_dict holds it, in the order of our declarations.
std::vector<StateTensor> to_torch(const ParamSet& params);

/// Reads every parameter; find(name) gives a tensor, empty where there is none. Missing names and other sizes
/// are refused with the name; nothing is changed then.
void from_torch(ParamSet& params, const Callable<ConstView(const std::string&)>& find);

/// How rows of a fused W_QKV [q + k + v rows] follow each other.
/// qkv: all of q, then k, then v. per_head: head by head, its q, k and v (as many kv heads as heads).
/// per_group: by key/value head, the q of its group, its k, its v.
enum class QkvOrder : std::uint8_t { qkv, per_head, per_group };
inline constexpr std::string_view kQkvNames[] = {"qkv", "per_head", "per_group"};
constexpr std::string_view name_of(QkvOrder o) { return kQkvNames[static_cast<int>(o)]; }

struct QkvSizes {
  Index heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};
/// Row i of a fused matrix in `order` is row qkv_rows(...)[i] of q|k|v.
std::vector<Index> qkv_rows(QkvOrder order, const QkvSizes& sizes);

/// The parameters name.q, name.k, name.v as one matrix [rows model_dim], or bias [rows], in `order`; and
/// back.
Tensor fused_qkv(const ParamSet& params, std::string_view name, const char* kind, QkvOrder order,
                 const QkvSizes& sizes);
void load_fused_qkv(ParamSet& params, std::string_view name, const char* kind, QkvOrder order,
                    const QkvSizes& sizes, const InputView& fused);

}  // namespace headwise
#pragma GCC visibility pop
