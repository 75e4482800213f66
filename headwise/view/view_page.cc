#include "headwise/view/view_page.h"

#include <cstring>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/base/error.h"
#include "headwise/base/half.h"
#include "headwise/view/packed_maps.h"
#include "headwise/view/page_text.h"

namespace headwise {
namespace {

constexpr const char* kOp = "view";
constexpr Index kTokenChars = 200;

std::string list_of(const std::vector<Index>& numbers) {
  std::string out;
  for (const Index n : numbers) out += (out.empty() ? "" : ",") + std::to_string(n);
  return "[" + out + "]";
}

std::string json_of(const ViewTokens& tokens) {
  std::string texts;
  for (const std::string& t : tokens.texts)
    texts += (texts.empty() ? "" : ",") + script_string(shown(t, kTokenChars));
  return text("{\"t\":[", texts, "],\"w\":", list_of(tokens.words), ",\"s\":", list_of(tokens.special), "}");
}

/// Numbers as f16 in base64; vectors are looked at, not computed with.
std::string halves(const std::vector<float>& numbers) {
  std::vector<unsigned char> bytes(2 * numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const f16 h(numbers[i]);
    std::memcpy(bytes.data() + 2 * i, &h, 2);
  }
  return "\"" + base64(bytes) + "\"";
}

std::string json_of(const MapFigures& f) {
  std::string out;
  for (const double x : {f.entropy, f.largest, f.distance, f.first, f.self, f.previous, f.next})
    out += (out.empty() ? "" : ",") + decimal(x, 4);
  return "[" + out + "]";
}

std::string json_of(const Generation& g) {
  std::string written, steps;
  for (const std::string& t : g.written)
    written += (written.empty() ? "" : ",") + script_string(shown(t, kTokenChars));
  for (const GeneratedStep& s : g.steps) {
    std::string likely;
    for (const auto& [token, p] : s.likely)
      likely += text(likely.empty() ? "" : ",", "[", script_string(shown(token, kTokenChars)), ",",
                     decimal(p, 4), "]");
    steps += text(steps.empty() ? "" : ",", "{\"p\":", decimal(s.probability, 4), ",\"l\":[", likely, "]}");
  }
  return text("{\"prompt\":", g.prompt, ",\"t\":[", written, "],\"steps\":[", steps,
              "],\"entropy\":", halves(g.entropy), ",\"largest\":", halves(g.largest),
              ",\"first\":", halves(g.first), "}");
}

std::string json_of(const std::vector<TokenPair>& pairs) {
  std::string out;
  for (const TokenPair& p : pairs)
    out += text(out.empty() ? "" : ",", "[", script_string(shown(p.from, kTokenChars)), ",",
                script_string(shown(p.to, kTokenChars)), ",", decimal(p.score, 3), "]");
  return "[" + out + "]";
}

std::string json_of(const Circuits& c) {
  std::string tokens, heads;
  for (const std::string& t : c.tokens)
    tokens += (tokens.empty() ? "" : ",") + script_string(shown(t, kTokenChars));
  for (const HeadCircuit& h : c.heads)
    heads += text(heads.empty() ? "" : ",", "{\"layer\":", h.layer, ",\"head\":", h.head,
                  ",\"qk\":", halves(h.qk), ",\"ov\":", halves(h.ov), ",\"topQk\":", json_of(h.top_qk),
                  ",\"topOv\":", json_of(h.top_ov), "}");
  return text("{\"t\":[", tokens, "],\"vocabulary\":", c.vocabulary, ",\"read\":", c.read,
              ",\"all\":", c.all_pairs ? 1 : 0, ",\"heads\":[", heads, "]}");
}

std::string json_of(const AttentionMaps& maps, const PackedMaps& packed, bool vectors) {
  std::string layers;
  for (std::size_t l = 0; l < packed.layers.size(); ++l) {
    const PackedLayer& p = packed.layers[l];
    std::string figures;
    for (const MapFigures& f : p.figures) figures += (figures.empty() ? "" : ",") + json_of(f);
    layers += text(l ? "," : "", "{\"heads\":", maps.heads[l], ",\"c\":\"", base64(p.counts), "\",\"p\":\"",
                   base64(p.halves), "\",\"r\":\"", base64(p.rest), "\",\"f\":[", figures, "]");
    if (!maps.value_norms.empty()) layers += ",\"n\":" + halves(maps.value_norms[l]);
    if (vectors) layers += ",\"q\":" + halves(maps.q[l]) + ",\"k\":" + halves(maps.k[l]);
    layers += "}";
  }
  std::string more = maps.generation ? ",\"g\":" + json_of(*maps.generation) : "";
  if (maps.circuits) more += ",\"circuit\":" + json_of(*maps.circuits);
  return text("{\"name\":", script_string(shown(maps.name, 60)), ",\"queries\":", json_of(maps.queries),
              ",\"keys\":", json_of(maps.keys), ",\"dim\":", vectors ? maps.head_dim : 0, more,
              ",\"layers\":[", layers, "]}");
}

Index vector_bytes_of(std::span<const AttentionMaps> all) {
  std::size_t bytes = 0;
  for (const AttentionMaps& m : all)
    for (const auto* side : {&m.q, &m.k})
      for (const auto& layer : *side) bytes += 2 * layer.size();
  return static_cast<Index>(bytes);
}

void add_warnings(const AttentionMaps& maps, const PackedMaps& packed, std::vector<std::string>& to) {
  const std::string name = "\"" + shown(maps.name, 60) + "\"";
  if (packed.not_numbers)
    to.push_back(text(grouped(packed.not_numbers), " weights of ", name,
                      " are below 0 or not finite; they are shown as 0"));
  if (packed.unusual)
    to.push_back(
        text(grouped(packed.unusual), " of ", grouped(packed.rows), " rows of ", name, " do not sum to 1"));
}

void check_language(const std::string& language) {
  require(language.empty() || language == "en" || language == "zh", ErrorKind::bad_argument, kOp,
          "language \"", language, "\" is not known; give en or zh");
}

}  // namespace

std::string map_page(const std::string& language) {
  check_language(language);
  return filled(map_template(), {{"style", std::string(viewer_style()) + std::string(view_style()) +
                                               std::string(map_style())},
                                 {"data", "{\"language\":" + script_string(language) + "}"},
                                 {"script", std::string(map_script())}});
}

ViewPage view_page(std::span<const AttentionMaps> all, const ViewOptions& o) {
  require(!all.empty(), ErrorKind::bad_argument, kOp, "there is no attention to look at; give at least one");
  check_language(o.language);
  for (const AttentionMaps& maps : all) check_maps(maps, kOp);
  ViewPage made;
  const bool room = vector_bytes_of(all) <= o.vector_bytes;
  const int least = least_code_that_fits(all, o.bytes);
  std::string parts, warnings;
  double rows = 0;
  for (const AttentionMaps& maps : all) {
    const PackedMaps packed = pack_maps(maps, least);
    add_warnings(maps, packed, made.warnings);
    made.left_out += packed.left_out * static_cast<double>(packed.rows);
    rows += static_cast<double>(packed.rows);
    parts += (parts.empty() ? "" : ",") + json_of(maps, packed, room && !maps.q.empty() && !maps.k.empty());
  }
  made.left_out /= rows;
  if (!room)
    made.warnings.push_back(text("queries and keys take ", grouped(vector_bytes_of(all)),
                                 " bytes and are left out; look at fewer layers for the view of neurons"));
  for (const std::string& w : made.warnings) warnings += (warnings.empty() ? "" : ",") + script_string(w);
  const std::string data =
      text("{\"version\":1,\"name\":", script_string(shown(o.name, 120)),
           ",\"language\":", script_string(o.language), ",\"leftOut\":", decimal(made.left_out, 4),
           ",\"compare\":", o.compare && all.size() > 1 ? 1 : 0, ",\"warnings\":[", warnings, "],\"parts\":[",
           parts, "]}");
  made.page = filled(view_template(), {{"name", html(shown(o.name, 120))},
                                       {"style", std::string(viewer_style()) + std::string(view_style())},
                                       {"data", data},
                                       {"script", std::string(view_script())}});
  return made;
}

}  // namespace headwise
