// TinyBert: a folder with a small random BERT in the form of the Hugging Face, and its rows by plain loops.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "headwise/model/safetensors.h"
#include "tests/model/scratch_folder.h"

namespace headwise {

using Matrix = std::vector<std::vector<double>>;

struct TinyBert {
  static constexpr Index kPieces = 12, kWidth = 8, kHeads = 2, kFeed = 12, kDepth = 2, kPlaces = 7;
  static constexpr const char* kConfig =
      R"({"architectures":["BertModel"],"model_type":"bert","hidden_act":"gelu","hidden_size":8,)"
      R"("intermediate_size":12,"layer_norm_eps":1e-12,"max_position_embeddings":7,"num_attention_heads":2,)"
      R"("num_hidden_layers":2,"type_vocab_size":2,"vocab_size":12,"hidden_dropout_prob":0.1})";
  static constexpr const char* kVocabulary =
      "[PAD]\n[UNK]\n[CLS]\n[SEP]\nmy\ncard\nis\nlost\n##s\n?\npay\nA\n";

  ScratchFolder folder;
  std::map<std::string, Tensor> tensors;  // by their names without a front

  TinyBert() {
    const auto add = [&](const std::string& name, std::initializer_list<Index> sizes, double middle = 0) {
      Tensor t = random_normal(sizes, DType::f32, tensors.size());
      for (float& x : t.values<float>()) x = static_cast<float>(middle + 0.3 * x);
      tensors.emplace(name, std::move(t));
    };
    const auto linear = [&](const std::string& name, Index out, Index in) {
      add(name + ".weight", {out, in}), add(name + ".bias", {out});
    };
    const auto norm = [&](const std::string& name) {
      add(name + ".weight", {kWidth}, 1), add(name + ".bias", {kWidth});
    };
    add("embeddings.word_embeddings.weight", {kPieces, kWidth});
    add("embeddings.position_embeddings.weight", {kPlaces, kWidth});
    add("embeddings.token_type_embeddings.weight", {2, kWidth});
    norm("embeddings.LayerNorm");
    for (Index i = 0; i < kDepth; ++i) {
      const std::string at = text("encoder.layer.", i, '.');
      for (const char* part : {"query", "key", "value"})
        linear(at + "attention.self." + part, kWidth, kWidth);
      linear(at + "attention.output.dense", kWidth, kWidth);
      norm(at + "attention.output.LayerNorm");
      linear(at + "intermediate.dense", kFeed, kWidth);
      linear(at + "output.dense", kWidth, kFeed);
      norm(at + "output.LayerNorm");
    }
    folder.file("config.json", kConfig);
    folder.file("vocab.txt", kVocabulary);
    write();
  }

  /// model.safetensors with every name as `spelled` has it; an empty one is left out.
  void write(const std::function<std::string(std::string)>& spelled = {},
             const NamedTensor& more = {}) const {
    std::vector<NamedTensor> all;
    for (const auto& [name, t] : tensors) {
      const std::string as = spelled ? spelled(name) : name;
      if (!as.empty()) all.push_back({as, t.view()});
    }
    if (!more.name.empty()) all.push_back(more);
    write_safetensors(folder / "model.safetensors", all);
  }

  double at(const std::string& name, Index i) const {
    return tensors.at(name).values<float>()[static_cast<std::size_t>(i)];
  }
  Matrix linear(const std::string& name, const Matrix& x) const {
    const Index out = tensors.at(name + ".bias").view().size[0];
    Matrix y(x.size(), std::vector<double>(static_cast<std::size_t>(out)));
    for (std::size_t r = 0; r < x.size(); ++r)
      for (Index o = 0; o < out; ++o) {
        double sum = at(name + ".bias", o);
        for (std::size_t i = 0; i < x[r].size(); ++i)
          sum += x[r][i] * at(name + ".weight", o * static_cast<Index>(x[r].size()) + static_cast<Index>(i));
        y[r][static_cast<std::size_t>(o)] = sum;
      }
    return y;
  }
  void norm(const std::string& name, Matrix& x) const {
    for (auto& row : x) {
      double mean = 0, variance = 0;
      for (const double v : row) mean += v / kWidth;
      for (const double v : row) variance += (v - mean) * (v - mean) / kWidth;
      for (std::size_t i = 0; i < row.size(); ++i)
        row[i] = (row[i] - mean) / std::sqrt(variance + 1e-12) * at(name + ".weight", static_cast<Index>(i)) +
                 at(name + ".bias", static_cast<Index>(i));
    }
  }
  static void add_to(Matrix& x, const Matrix& y) {
    for (std::size_t r = 0; r < x.size(); ++r)
      for (std::size_t i = 0; i < x[r].size(); ++i) x[r][i] += y[r][i];
  }

  /// The last rows of one sequence, in double, as Devlin et al. 2019 has them.
  Matrix rows(const std::vector<int>& ids) const {
    Matrix x(ids.size(), std::vector<double>(kWidth));
    for (std::size_t t = 0; t < ids.size(); ++t)
      for (Index i = 0; i < kWidth; ++i)
        x[t][static_cast<std::size_t>(i)] =
            at("embeddings.word_embeddings.weight", ids[t] * kWidth + i) +
            at("embeddings.position_embeddings.weight", static_cast<Index>(t) * kWidth + i) +
            at("embeddings.token_type_embeddings.weight", i);
    norm("embeddings.LayerNorm", x);
    for (Index layer = 0; layer < kDepth; ++layer) {
      const std::string front = text("encoder.layer.", layer, '.');
      const Matrix q = linear(front + "attention.self.query", x), k = linear(front + "attention.self.key", x),
                   v = linear(front + "attention.self.value", x);
      Matrix mixed(x.size(), std::vector<double>(kWidth));
      constexpr std::size_t kDim = kWidth / kHeads;
      for (std::size_t h = 0; h < kHeads; ++h)
        for (std::size_t t = 0; t < x.size(); ++t) {
          std::vector<double> e(x.size());
          double sum = 0;
          for (std::size_t u = 0; u < x.size(); ++u) {
            double score = 0;
            for (std::size_t i = h * kDim; i < (h + 1) * kDim; ++i) score += q[t][i] * k[u][i];
            sum += e[u] = std::exp(score / std::sqrt(static_cast<double>(kDim)));
          }
          for (std::size_t u = 0; u < x.size(); ++u)
            for (std::size_t i = h * kDim; i < (h + 1) * kDim; ++i) mixed[t][i] += e[u] / sum * v[u][i];
        }
      add_to(x, linear(front + "attention.output.dense", mixed));
      norm(front + "attention.output.LayerNorm", x);
      Matrix inner = linear(front + "intermediate.dense", x);
      for (auto& row : inner)
        for (double& s : row) s = s * 0.5 * (1 + std::erf(s / std::sqrt(2.0)));
      add_to(x, linear(front + "output.dense", inner));
      norm(front + "output.LayerNorm", x);
    }
    return x;
  }
};

}  // namespace headwise
