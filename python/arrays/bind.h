// The parts of the Python module, one function a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "headwise/base/index.h"

namespace headwise {
class ParamSet;
class Transformer;
}  // namespace headwise

namespace headwise::python {

void bind_base(nanobind::module_& m);
void bind_masks(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_backward(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_kv(nanobind::module_& m);
void bind_layers(nanobind::module_& m);
void bind_model(nanobind::module_& m);
void bind_heads(nanobind::module_& m);
void bind_torch_node(nanobind::module_& m);
void bind_jax(nanobind::module_& m);
void bind_text(nanobind::module_& m);
void bind_lab(nanobind::module_& m);
void bind_decoder(nanobind::module_& m);
void bind_view(nanobind::module_& m);
/// hw.Transformer.save_decoder; a build without ICU refuses it.
void save_transformer(const Transformer& model, ParamSet& params, const std::string& folder,
                      const std::string& tokenizer_json, const std::vector<Index>& ends);

}  // namespace headwise::python
