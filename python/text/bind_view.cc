// hw.view's page: attention weights as NumPy arrays to one HTML page.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "headwise/text/text_encoder.h"
#include "headwise/view/deep/atnv.h"
#include "headwise/view/deep/deep_map.h"
#include "headwise/view/model_maps.h"
#include "headwise/view/view_page.h"
#include "python/arrays/bind.h"

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

FileArray array_of(const Weights& a) {
  FileArray f{.name = "",
              .kind = ElementKind::f32,
              .sizes = {},
              .element_bytes = 4,
              .data = reinterpret_cast<const std::byte*>(a.data())};
  for (std::size_t d = 0; d < a.ndim(); ++d) f.sizes.push_back(static_cast<Index>(a.shape(d)));
  return f;
}

/// What stands beside the arrays of a file.
AtnvContent content_of(const nb::tuple& terms) {
  AtnvContent c;
  c.mask = nb::cast<std::string>(terms[0]);
  c.window = nb::cast<Index>(terms[1]), c.q_start = nb::cast<Index>(terms[2]);
  c.scale = nb::cast<float>(terms[3]), c.softcap = nb::cast<float>(terms[4]);
  c.tokens = nb::cast<std::vector<std::string>>(terms[5]);
  c.key_tokens = nb::cast<std::vector<std::string>>(terms[6]);
  c.name = nb::cast<std::string>(terms[7]);
  return c;
}
/// Layers q [heads tokens head_dim], k likewise, lse [heads tokens 1] or none of them.
void write_file(const std::string& path, const std::vector<Weights>& q, const std::vector<Weights>& k,
                const std::vector<Weights>& lse, AtnvContent c) {
  for (std::size_t l = 0; l < q.size(); ++l) {
    QkLayer layer{.number = static_cast<Index>(l), .q = array_of(q[l]), .k = array_of(k[l]), .lse = {}};
    if (!lse.empty()) layer.lse = array_of(lse[l]), layer.lse->sizes.pop_back();
    c.layers.push_back(std::move(layer));
  }
  const nb::gil_scoped_release free;
  write_atnv(path, c);
}

using Floats = nb::ndarray<nb::numpy, float>;
Floats numpy_of(std::vector<float> numbers, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<float>(std::move(numbers));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return Floats(kept->data(), shape, owner);
}

QkSource open_source(const std::string& path, const std::string& mask, float scale) {
  QkTerms terms;
  terms.mask = parse_mask(mask), terms.scale = scale;
  std::optional<QkSource> source = open_qk(path, terms);
  require(source.has_value(), ErrorKind::bad_argument, "view", path,
          " holds no q and k; give a .atnv, .npz or .safetensors file that does");
  return std::move(*source);
}

/// What `sums` gives once the head's pyramid is whole.
template <class Sums>
Floats whole_sums(DeepMap& d, Index layer, Index head, const Sums& sums) {
  std::vector<float> w;
  {
    const nb::gil_scoped_release free;
    d.finish(layer, head);
    w = sums();
  }
  const std::size_t n = w.size();
  return numpy_of(std::move(w), {n});
}

void bind_long_map(nb::module_& m) {
  nb::class_<DeepMap>(
      m, "LongMap",
      "Attention of any length, from queries and keys in a file: weights are computed when asked for.")
      .def(
          "__init__",
          [](DeepMap* self, const std::string& path, const std::string& mask, float scale, int threads) {
            new (self) DeepMap(open_source(path, mask, scale), threads);
          },
          nb::arg("path"), nb::arg("mask") = "all", nb::arg("scale") = 0.0f, nb::arg("threads") = 0,
          nb::sig("def __init__(self, path: str, mask: str = 'all', scale: float = 0.0, threads: int = 0) -> "
                  "None"),
          "A .atnv file, or q and k in a .npz or .safetensors file with their mask and scale.")
      .def_prop_ro(
          "shape",
          [](const DeepMap& d) {
            const QkSource& s = d.source();
            return nb::make_tuple(s.layers.size(), s.heads, s.q_tokens, s.kv_tokens);
          },
          nb::sig("def shape(self) -> tuple[int, int, int, int]"), "Layers, heads, queries, keys.")
      .def(
          "weights",
          [](DeepMap& d, Index layer, Index head, std::pair<Index, Index> rows,
             std::pair<Index, Index> keys) {
            std::vector<float> w;
            {
              const nb::gil_scoped_release free;
              w = d.weights(layer, head, {rows.first, rows.second - rows.first}, keys.first, keys.second);
            }
            const auto n = [](std::pair<Index, Index> p) {
              return static_cast<std::size_t>(p.second - p.first);
            };
            return numpy_of(std::move(w), {n(rows), n(keys)});
          },
          nb::arg("layer"), nb::arg("head"), nb::arg("rows"), nb::arg("keys"),
          nb::sig("def weights(self, layer: int, head: int, rows: tuple[int, int], keys: tuple[int, int]) -> "
                  "Any"),
          "Exact weights of queries [begin, end) over keys [begin, end).")
      .def(
          "by_distance",
          [](DeepMap& d, Index layer, Index head) {
            return whole_sums(d, layer, head, [&] { return d.by_distance(layer, head); });
          },
          nb::arg("layer"), nb::arg("head"), nb::sig("def by_distance(self, layer: int, head: int) -> Any"),
          "Mean weight by distance back, 0 and up; walks over the whole map once.")
      .def(
          "column_sums",
          [](DeepMap& d, Index layer, Index head) {
            return whole_sums(d, layer, head, [&] { return d.column_sums(layer, head); });
          },
          nb::arg("layer"), nb::arg("head"), nb::sig("def column_sums(self, layer: int, head: int) -> Any"),
          "What each key receives of all queries.");
  m.def(
      "write_atnv",
      [](const std::string& path, const std::vector<Weights>& q, const std::vector<Weights>& k,
         const std::vector<Weights>& lse,
         const nb::tuple& terms) { write_file(path, q, k, lse, content_of(terms)); },
      nb::sig("def write_atnv(path: str, q: Sequence[Array], k: Sequence[Array], lse: Sequence[Array], "
              "terms: tuple[Any, ...], /) -> None"),
      "Queries and keys of one text as a .atnv file.");
}

}  // namespace

void bind_view(nb::module_& m) {
  bind_long_map(m);
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
  nb::class_<ModelText>(m, "ModelText", "What a model is asked to look at.")
      .def(
          "__init__",
          [](ModelText* self, const std::string& text, const std::string& pair, Index generate,
             double temperature, std::uint64_t seed, const std::string& circuit) {
            new (self) ModelText{.text = text, .pair = pair};
            self->decoder.generate = generate;
            self->decoder.sampling.temperature = temperature, self->decoder.sampling.seed = seed;
            self->decoder.circuit = circuit;
          },
          nb::arg("text"), nb::arg("pair"), nb::arg("generate"), nb::arg("temperature"), nb::arg("seed"),
          nb::arg("circuit"),
          nb::sig("def __init__(self, text: str, pair: str, generate: int, temperature: float, seed: int, "
                  "circuit: str) -> None"));
  m.def("view_page", &page_of_parts, nb::arg("parts"), nb::arg("name"), nb::arg("language"),
        nb::sig(
            "def view_page(parts: list[ViewPart], name: str, language: str) -> tuple[str, float, list[str]]"),
        "The page, the mass it leaves out, and what it warns of.");
  m.def(
      "view_model_page",
      [](const std::string& path, const std::string& other, const ModelText& what,
         const std::string& language) {
        std::vector<AttentionMaps> all;
        {
          const nb::gil_scoped_release free;
          Session session;
          all.push_back(maps_of_model(path, what, session));
          if (!other.empty()) add_other(all, path, other, what, session);
        }
        return page_of({.name = path.substr(path.find_last_of('/') + 1),
                        .language = language,
                        .compare = !other.empty()},
                       all);
      },
      nb::arg("path"), nb::arg("other"), nb::arg("what"), nb::arg("language"),
      nb::sig(
          "def view_model_page(path: str, other: str, what: ModelText, language: str) -> tuple[str, float, "
          "list[str]]"),
      "The same for a model and a text, beside another model where one is named.");
}

}  // namespace headwise::python
