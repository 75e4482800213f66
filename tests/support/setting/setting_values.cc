// The values of every option, their names, and the sizes and work a choice stands for.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tests/support/setting/setting.h"
#include "tests/support/setting/setting_values.h"

namespace headwise::test {

namespace {

struct Row {
  const char* name;
  std::vector<const char*> values;
};
std::vector<const char*> form_names() {
  std::vector<const char*> names;
  for (const KeysValues& form : kKeyForms) names.push_back(form.name);
  return names;
}
const std::vector<Row>& table() {
  static const std::vector<Row> rows = [] {
    const std::vector<const char*> dims = {"16", "1",  "3",  "8",   "20",  "33",
                                           "64", "65", "96", "128", "192", "256"};
    std::vector<const char*> masks;
    for (int kind = 0; kind < mask_kinds(); ++kind) masks.push_back(mask_kind_name(kind));
    return std::vector<Row>{
        {"dtype", {"f32", "bf16", "f16", "f64"}},
        {"heads", {"2:2", "1:1", "4:2", "7:1", "12:4", "0:0"}},
        {"head_dim", dims},
        {"value_dim", dims},
        {"q_tokens", {"33", "0", "1", "2", "31", "32", "63", "64", "65", "255", "256", "257", "300"}},
        {"kv_tokens",
         {"65", "0", "1", "2", "31", "32", "33", "63", "64", "255", "256", "257", "300", "2047", "2048",
          "2049", "4100"}},
        {"batch", {"1", "0", "2", "3"}},
        {"q_start", {"none", "7", "-3", "end", "per sequence"}},
        {"ragged", {"no", "yes"}},
        {"mask", masks},
        {"scale", {"none", "number", "per head", "0", "negative", "1e-30", "1e30"}},
        {"softcap", {"none", "5", "30"}},
        {"alibi", {"none", "f32", "bf16"}},
        {"bias",
         {"none", "full", "q kv", "batch kv bf16", "heads q f16", "one number f64", "transposed", "merged",
          "with -inf"}},
        {"relative", {"none", "one way", "both ways"}},
        {"sinks", {"none", "f32", "+30", "-30 bf16", "-inf"}},
        {"dropout", {"none", "0.1", "0.5 with ids"}},
        {"gate", {"none", "f32", "bf16"}},
        {"layout", {"bshd", "bhsd", "packed", "step 2", "stride 0", "junk", "shifted", "k and v alias"}},
        {"out layout", {"bshd", "bhsd", "step 2"}},
        {"head kind", {"plain", "overlapped", "one key head", "columns"}},
        {"lse", {"no", "yes", "spread"}},
        {"row probes", {"no", "yes"}},
        {"top_k", {"0", "1", "5"}},
        {"classes", {"0", "3"}},
        {"columns", {"no", "yes"}},
        {"picked", {"0", "4"}},
        {"stage", {"none", "weights"}},
        {"threads", {"2", "1", "3", "5"}},
        {"kernels", {"default", "cpu/online,ref", "cpu/online"}},
        {"keys and values", form_names()},
        {"rows", {"all", "some", "few and none"}},
    };
  }();
  return rows;
}
const char* value_name(int option, int value) {
  return table()[static_cast<std::size_t>(option)].values[static_cast<std::size_t>(value)];
}

}  // namespace

int values_of(int option) {
  return static_cast<int>(table()[static_cast<std::size_t>(option)].values.size());
}
const char* name_of(int option) { return table()[static_cast<std::size_t>(option)].name; }

Index number_of(const Choice& c, int option) {
  return std::atoll(value_name(option, c[static_cast<std::size_t>(option)]));
}

std::string to_text(const Choice& c) {
  std::string s;
  for (int v : c) s += (s.empty() ? "" : ".") + std::to_string(v);
  return s;
}
Choice choice_of(const std::string& text) {
  Choice c{};
  std::size_t at = 0;
  for (std::size_t option = 0; option < c.size() && at < text.size(); ++option) {
    c[option] = std::atoi(text.c_str() + at);
    require(0 <= c[option] && c[option] < values_of(static_cast<int>(option)), ErrorKind::bad_argument,
            "case", "option ", option, " has no value ", c[option], "; use the text a failing test printed");
    at = text.find('.', at) == std::string::npos ? text.size() : text.find('.', at) + 1;
  }
  return c;
}
std::string describe(const Choice& c) {
  std::string s;
  for (int option = 0; option < kOptions; ++option)
    if (const int value = c[static_cast<std::size_t>(option)]; value != 0)
      s += std::string(s.empty() ? "" : ", ") + name_of(option) + " " + value_name(option, value);
  return s.empty() ? "plain" : s;
}

Sizes sizes_of(const Choice& c) {
  constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  constexpr Index kHeadCounts[][2] = {{2, 2}, {1, 1}, {4, 2}, {7, 1}, {12, 4}, {0, 0}};
  const Index* heads = kHeadCounts[c[kHeads]];
  return {
      kDtypes[c[kDtype]], number_of(c, kBatch),   number_of(c, kQTokens), number_of(c, kKvTokens), heads[0],
      heads[1],           number_of(c, kHeadDim), number_of(c, kValueDim)};
}
double work_of(const Choice& c) {
  const Sizes s = sizes_of(c);
  return static_cast<double>(s.batch * s.q_tokens * s.kv_tokens) *
         static_cast<double>(s.heads * (s.head_dim + s.value_dim));
}

}  // namespace headwise::test
