// headwise heads: every head, where its heads meet and what it costs; or one head's settings.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/cli/args/args.h"
#include "headwise/heads/cost.h"
#include "headwise/heads/list.inc"

namespace headwise::cli {
namespace {

struct Request {
  std::string name;
  Index model_dim = 1024, heads = 16, tokens = 2048, layer = 6, depth = 12;
  bool json = false;
};

/// A head in the layer that was asked for.
struct Entry {
  ParamSet params;
  AnyHead head;
  HeadCost cost;
  Entry(const Request& r, std::string_view name)
      : head(make_head(text(name, ":heads=", r.heads), params, place(r))),
        cost(cost_of(head, params, {.batch = 1, .q_tokens = r.tokens, .kv_tokens = r.tokens}, place(r))) {}
  static Place place(const Request& r) { return {r.layer, r.depth, r.model_dim}; }
};

nlohmann::ordered_json facts_of(const Entry& e) {
  return {{"name", e.head.name()},
          {"settings", e.head.settings()},
          {"meets", e.head.meets()},
          {"parameters", e.cost.parameters},
          {"attention_flops", e.cost.attention_flops},
          {"own_flops", e.cost.own_flops},
          {"cache_bytes", e.cost.cache_bytes}};
}

int list_heads(const Request& r) {
  const Entry mha(r, "mha");
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  if (!r.json)
    fmt::print("{:<15}{:>12}{:>11}{:>11}{:>11}  {}\n", "head", "parameters", "attention", "own", "cache",
               "heads meet");
  AllHeads::each([&]<class H>(Type<H>) {
    const Entry e(r, H::name);
    all.push_back(facts_of(e));
    const double flops = mha.cost.attention_flops;
    if (!r.json)
      fmt::print("{:<15}{:>11.2f}x{:>10.2f}x{:>10.3f}x{:>10.2f}x  {}\n", H::name,
                 static_cast<double>(e.cost.parameters) / static_cast<double>(mha.cost.parameters),
                 e.cost.attention_flops / flops, e.cost.own_flops / flops,
                 e.cost.cache_bytes / mha.cost.cache_bytes, H::meets);
  });
  if (r.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"model_dim", r.model_dim},
                                              {"tokens", r.tokens},
                                              {"layer", r.layer},
                                              {"depth", r.depth},
                                              {"heads", all}}
                           .dump(2));
  } else {
    fmt::print(
        "against mha: {} heads, model_dim {}, {} tokens, layer {} of {}; own: what it computes beside "
        "attention and projections\n",
        r.heads, r.model_dim, r.tokens, r.layer, r.depth);
  }
  return kDone;
}

template <class H>
void print_fields() {
  fmt::print("{}: heads meet {}\n", H::name, H::meets);
  each_field<H>([](const auto& f) {
    const auto start = typename H::Config{}.*f.member;
    fmt::print("  {:<12}{:<12}{}", f.name, value_text(start), f.help);
    if constexpr (std::is_enum_v<std::remove_const_t<decltype(start)>>) fmt::print("; {}", kind_text(start));
    fmt::print("\n");
  });
}

int heads_word(const Request& r) {
  if (r.name.empty()) return list_heads(r);
  bool found = false;
  AllHeads::each([&]<class H>(Type<H>) {
    if (H::name != r.name) return;
    found = true;
    if (r.json)
      fmt::print("{}\n", facts_of(Entry(r, H::name)).dump(2));
    else
      print_fields<H>();
  });
  require(found, ErrorKind::bad_argument, "heads", "there is no head \"", r.name, "\"; there are ",
          head_names());
  return kDone;
}

}  // namespace

void add_heads(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("heads", "Every head, where its heads meet and what it costs");
  word->footer("Example: headwise heads\n         headwise heads gated");
  const auto r = std::make_shared<Request>();
  const CLI::Validator width = size_check(0, Index{1} << 24);  // costs hold its square, some a few times
  word->add_option("name", r->name, "One head: its settings, defaults and what they mean");
  word->add_option("--model-dim", r->model_dim, "Width of the layer")->check(width)->capture_default_str();
  word->add_option("--heads", r->heads, "Number of heads")->check(width)->capture_default_str();
  word->add_option("--tokens", r->tokens, "Tokens of one sequence")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--layer", r->layer, "Layer, from 0")->check(size_check())->capture_default_str();
  word->add_option("--depth", r->depth, "Layers of the model")->check(size_check())->capture_default_str();
  word->add_flag("--json", r->json, "One JSON object");
  word->callback([r, &exit_code] { exit_code = heads_word(*r); });
}

}  // namespace headwise::cli
