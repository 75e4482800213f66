// hw.TextEncoder, hw.Recognizer, hw.Decoder and hw.view of a build without ICU: names that say what is
// missing.
#include <nanobind/nanobind.h>

#include "headwise/base/error.h"
#include "python/arrays/bind.h"
#include "python/text/bind_align.h"
#include "python/text/bind_recognizer.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

struct TextEncoderMissing {};
struct DecoderMissing {};
struct DecoderMemoryMissing {};
struct ViewPartMissing {};
struct LongMapMissing {};
struct RecognizerMissing {};

[[noreturn]] void refuse(const char* op) {
  throw Error(ErrorKind::unsupported, text(op,
                                           ": this build has no Unicode tables; install ICU (Debian: "
                                           "libicu-dev) and build again"));
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<TextEncoderMissing>(m, "TextEncoder")
      .def("__init__", [](TextEncoderMissing*, nb::args, nb::kwargs) { refuse("text encoder"); });
}

void save_transformer(const Transformer&, ParamSet&, const std::string&, const std::string&,
                      const std::vector<Index>&) {
  refuse("save decoder");
}

void bind_decoder(nb::module_& m) {
  nb::class_<DecoderMemoryMissing>(m, "DecoderMemory");
  nb::class_<DecoderMissing>(m, "DecoderCore").def("__init__", [](DecoderMissing*, nb::args, nb::kwargs) {
    refuse("decoder");
  });
}

void bind_view(nb::module_& m) {
  nb::class_<ViewPartMissing>(m, "ViewPart").def("__init__", [](ViewPartMissing*, nb::args, nb::kwargs) {
    refuse("view");
  });
  nb::class_<LongMapMissing>(m, "LongMap").def("__init__", [](LongMapMissing*, nb::args, nb::kwargs) {
    refuse("view");
  });
  for (const char* name : {"view_page", "view_model_page", "write_atnv"})
    m.def(name, [](nb::args, nb::kwargs) { refuse("view"); });
}

void bind_align(nb::module_& m) {
  for (const char* name : {"align_pairs", "word_links"})
    m.def(name, [](nb::args, nb::kwargs) { refuse("align"); });
}

void bind_recognizer(nb::module_& m) {
  nb::class_<RecognizerMissing>(m, "RecognizerCore")
      .def("__init__", [](RecognizerMissing*, nb::args, nb::kwargs) { refuse("recognizer"); });
  m.def("recognizer_train", [](nb::args) { refuse("recognizer"); });
}

void bind_lab(nb::module_& m) {
  for (const char* name : {"lab_survey", "lab_survey_arrays", "lab_cut", "lab_convert", "lab_share",
                           "lab_answers", "lab_head_rows", "lab_rollout", "lab_flow"})
    m.def(name, [](nb::args) { refuse("lab"); });
}

}  // namespace headwise::python
