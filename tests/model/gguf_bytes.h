// GgufBytes: writes small GGUF files, good ones and bad ones, byte by byte.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

class GgufBytes {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> sizes;  // innermost first
    std::uint32_t type = 0;
    std::string data;
  };
  template <class T>
  static std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string word(std::string_view s) { return raw<std::uint64_t>(s.size()) + std::string(s); }

  GgufBytes& number(std::string_view key, std::uint32_t value) { return add(key, 4, raw(value)); }
  GgufBytes& real(std::string_view key, float value) { return add(key, 6, raw(value)); }
  GgufBytes& flag(std::string_view key, bool value) { return add(key, 7, raw(value)); }
  GgufBytes& text(std::string_view key, std::string_view value) { return add(key, 8, word(value)); }
  GgufBytes& words(std::string_view key, const std::vector<std::string>& all) {
    std::string bytes = raw<std::uint32_t>(8) + raw<std::uint64_t>(all.size());
    for (const std::string& s : all) bytes += word(s);
    return add(key, 9, bytes);
  }
  GgufBytes& add(std::string_view key, std::uint32_t type, std::string_view value) {
    settings_ += word(key) + raw(type) + std::string(value);
    ++count_;
    return *this;
  }
  GgufBytes& tensor(Tensor t) {
    tensors_.push_back(std::move(t));
    return *this;
  }
  std::string bytes() const {
    std::string head = "GGUF" + raw<std::uint32_t>(3) + raw<std::uint64_t>(tensors_.size()) +
                       raw<std::uint64_t>(count_) + settings_;
    std::string data;
    for (const Tensor& t : tensors_) {
      head += word(t.name) + raw(static_cast<std::uint32_t>(t.sizes.size()));
      for (const std::uint64_t n : t.sizes) head += raw(n);
      head += raw(t.type) + raw<std::uint64_t>(data.size());
      data += t.data;
      data.resize((data.size() + 31) / 32 * 32, '\0');
    }
    head.resize((head.size() + 31) / 32 * 32, '\0');
    return head + data;
  }

 private:
  std::string settings_;
  std::uint64_t count_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace headwise
