// hw.view's page: attention weights as NumPy arrays to one HTML page.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "headwise/text/text_encoder.h"
#include "headwise/view/model_maps.h"
#include "headwise/view/view_page.h"
#include "python/bind.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

using Weights = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

std::vector<std::vector<float>> layers_of(const std::vector<Weights>& arrays) {
  std::vector<std::vector<float>> all;
  for (const Weights& a : arrays) all.emplace_back(a.data(), a.data() + a.size());
  return all;
}

/// One attention: weights [heads queries keys] a layer, and where given norms [heads keys 1], q and k.
struct ViewPart {
  AttentionMaps maps;
  std::vector<Weights> weights;  // alive as long as the part
};

ViewPart make_part(const std::string& name, std::vector<std::string> query_tokens,
                   std::vector<std::string> key_tokens, const std::vector<Weights>& weights,
                   const std::vector<Weights>& norms) {
  ViewPart part{.maps = {}, .weights = weights};
  AttentionMaps& m = part.maps;
  m.name = name;
  m.queries.texts = std::move(query_tokens), m.keys.texts = std::move(key_tokens);
  struct Layer {
    const float* data;
    Index queries, keys;
  };
  std::vector<Layer> layers;
  for (const Weights& w : weights) {
    m.heads.push_back(static_cast<Index>(w.shape(0)));
    layers.push_back({w.data(), static_cast<Index>(w.shape(1)), static_cast<Index>(w.shape(2))});
    require(layers.back().queries == m.queries.count() && layers.back().keys == m.keys.count(),
            ErrorKind::bad_argument, "view", "weights of layer ", layers.size() - 1, " are [", w.shape(0),
            " ", w.shape(1), " ", w.shape(2), "] beside ", m.queries.count(), " query tokens and ",
            m.keys.count(), " key tokens; give one token for each row and column");
  }
  m.row = [layers](Index layer, Index head, Index query, std::span<float> row) {
    const Layer& l = layers[static_cast<std::size_t>(layer)];
    std::copy_n(l.data + (head * l.queries + query) * l.keys, l.keys, row.begin());
  };
  m.value_norms = layers_of(norms);
  return part;
}

nb::tuple page_of(const ViewOptions& options, std::span<const AttentionMaps> all) {
  ViewPage made;
  {
    const nb::gil_scoped_release free;
    made = view_page(all, options);
  }
  return nb::make_tuple(made.page, made.left_out, made.warnings);
}

nb::tuple page_of_parts(const nb::list& parts, const std::string& name, const std::string& language) {
  std::vector<AttentionMaps> all;
  for (const nb::handle part : parts) all.push_back(nb::cast<ViewPart&>(part).maps);
  return page_of({.name = name, .language = language}, all);
}

}  // namespace

void bind_view(nb::module_& m) {
  nb::class_<ViewPart>(m, "ViewPart", "One attention of a page that hw.view makes.")
      .def(
          "__init__",
          [](ViewPart* self, const std::string& name, const std::vector<std::string>& query_tokens,
             const std::vector<std::string>& key_tokens, const std::vector<Weights>& weights,
             const std::vector<Weights>& norms) {
            new (self) ViewPart(make_part(name, query_tokens, key_tokens, weights, norms));
          },
          nb::arg("name"), nb::arg("query_tokens"), nb::arg("key_tokens"), nb::arg("weights"),
          nb::arg("norms"),
          nb::sig("def __init__(self, name: str, query_tokens: Sequence[str], key_tokens: Sequence[str], "
                  "weights: Sequence[Array], "
                  "norms: Sequence[Array]) -> None"))
      .def(
          "words",
          [](ViewPart& part, const std::vector<Index>& queries, const std::vector<Index>& keys) {
            part.maps.queries.words = queries, part.maps.keys.words = keys;
          },
          nb::arg("queries"), nb::arg("keys"),
          nb::sig("def words(self, queries: Sequence[int], keys: Sequence[int]) -> None"),
          "Numbers of the words that the tokens are pieces of.")
      .def(
          "special",
          [](ViewPart& part, const std::vector<Index>& queries, const std::vector<Index>& keys) {
            part.maps.queries.special = queries, part.maps.keys.special = keys;
          },
          nb::arg("queries"), nb::arg("keys"),
          nb::sig("def special(self, queries: Sequence[int], keys: Sequence[int]) -> None"),
          "Places of [CLS], [SEP] and the like.")
      .def(
          "vectors",
          [](ViewPart& part, const std::vector<Weights>& q, const std::vector<Weights>& k) {
            part.maps.q = layers_of(q), part.maps.k = layers_of(k);
            part.maps.head_dim = q.empty() ? 0 : static_cast<Index>(q[0].shape(2));
          },
          nb::arg("q"), nb::arg("k"),
          nb::sig("def vectors(self, q: Sequence[Array], k: Sequence[Array]) -> None"),
          "Queries and keys, [heads tokens head_dim] a layer, for the view of neurons.");
  m.def("view_page", &page_of_parts, nb::arg("parts"), nb::arg("name"), nb::arg("language"),
        nb::sig(
            "def view_page(parts: list[ViewPart], name: str, language: str) -> tuple[str, float, list[str]]"),
        "The page, the mass it leaves out, and what it warns of.");
  m.def(
      "view_model_page",
      [](const std::string& folder, const std::string& text, const std::string& pair,
         const std::string& language) {
        AttentionMaps maps;
        {
          const nb::gil_scoped_release free;
          Session session;
          maps = maps_of_folder(folder, text, pair, session);
        }
        return page_of({.name = folder.substr(folder.find_last_of('/') + 1), .language = language},
                       std::span(&maps, 1));
      },
      nb::arg("folder"), nb::arg("text"), nb::arg("pair"), nb::arg("language"),
      nb::sig("def view_model_page(folder: str, text: str, pair: str, language: str) -> tuple[str, float, "
              "list[str]]"),
      "The same for a model's folder and a text.");
}

}  // namespace headwise::python
