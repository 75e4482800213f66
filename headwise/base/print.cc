// Sentences of errors: their parts, written in one place.
// SPDX-License-Identifier: Apache-2.0
#include <locale>
#include <ostream>
#include <sstream>

#include "headwise/base/view.h"

namespace headwise {
namespace {

std::string written(std::string_view front, const TextPart* parts, std::size_t count) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // a host's global locale must not group digits in our sentences
  out << front;
  for (std::size_t i = 0; i < count; ++i) parts[i].write(out);
  return out.str();
}

}  // namespace

void TextPart::write(std::ostream& out) const {
  switch (kind_) {
    case Kind::words: out << words_; return;
    case Kind::sign: out << sign_; return;
    case Kind::real: out << real_; return;
    case Kind::whole: out << whole_; return;
    case Kind::natural: out << natural_; return;
    case Kind::other: other_.write(out, other_.object); return;
    case Kind::setting: out << setting_; return;
  }
}

std::string joined(const TextPart* parts, std::size_t count) { return written("", parts, count); }
void refuse_joined(ErrorKind kind, std::string_view where, const TextPart* parts, std::size_t count) {
  throw Error(kind, written(std::string(where) + ": ", parts, count));
}

std::ostream& operator<<(std::ostream& out, DType t) { return out << name_of(t); }

std::ostream& operator<<(std::ostream& out, const Device& d) {
  if (d.kind == Device::Kind::cpu) return out << "the CPU";
  return out << "CUDA device " << d.index;
}

std::ostream& write_sizes(std::ostream& out, const Index* sizes, int rank) {
  out << '[';
  for (int axis = 0; axis < rank; ++axis) out << (axis ? " " : "") << sizes[axis];
  return out << ']';
}
std::ostream& operator<<(std::ostream& out, const ViewForm& v) {
  return write_sizes(out << v.dtype << ' ', v.size, v.rank);
}

}  // namespace headwise
