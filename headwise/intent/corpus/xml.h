// XmlReader: tags and texts of an XML document one after another, as office files need them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace headwise {

/// What is not well formed ends the document early, it is never read beyond its end. Prefixes of names are
/// left out; comments, instructions and declarations are skipped, so there are no entities but the five and
/// numbers.
class XmlReader {
 public:
  enum class Kind { open, close, text, end };

  explicit XmlReader(std::string_view document) : rest_(document) {}
  /// The next part; <a/> is an open and a close.
  Kind next();
  /// Of a tag.
  std::string_view name() const { return name_; }
  std::string attribute(std::string_view name) const;
  /// Of a text, with its references resolved.
  std::string text() const;

 private:
  Kind text_until(std::size_t end, std::size_t skip, bool verbatim);

  std::string_view rest_, name_, inside_;
  bool closes_ = false, verbatim_ = false;
};

}  // namespace headwise
