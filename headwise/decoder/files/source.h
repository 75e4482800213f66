// DecoderSource: a decoder's weights from a Hugging Face folder, a GGUF, llama2.c or Whisper file.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/decoder/files/config.h"
#include "headwise/spec/stored.h"
#include "headwise/text/pieces/tokenizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Rows first .. first + count - 1 of a matrix [rows columns].
struct SourceRows {
  Index rows = 0, columns = 0, first = 0, count = 0;
};

/// Weights go by our names, whatever the file calls them: embed, positions, head, norm.{weight,bias}, and
/// layers.N. followed by {q,k,v,o,gate,up,down}.{weight,bias}, {norm_1,norm_2}.{weight,bias},
/// {q_norm,k_norm,behind_1,behind_2}.weight; of cross-attention cross_{q,k,v,o,norm}.{weight,bias}.
class DecoderSource {
 public:
  virtual ~DecoderSource() = default;
  const DecoderConfig& config() const { return config_; }
  /// Throws unless the weight is there as [rows columns] ([columns] where rows is 0).
  virtual void check(const std::string& name, Index rows, Index columns) = 0;
  /// As f32, row-major; check() said yes.
  virtual void read(const std::string& name, Index rows, Index columns, float* to) = 0;
  /// How the file keeps a matrix; f32 where its bytes cannot be taken row by row as they are.
  virtual StoredFormat format(const std::string& name) const;
  /// Some rows in the bytes of format(name).
  virtual void read_rows(const std::string& name, const SourceRows& part, std::byte* to);
  /// After every check(): throws when the file holds a weight that nobody asked for.
  virtual void check_nothing_left() const = 0;
  /// Null: no tokenizer lies beside the weights.
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  std::shared_ptr<const Tokenizer> share_tokenizer() const { return tokenizer_; }
  /// The model's own template for conversations, as the file has it; "" where there is none.
  const std::string& chat_template() const { return chat_template_; }

 protected:
  DecoderConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string chat_template_;

 private:
  std::string held_name_;  // of the matrix that is read row by row
  std::vector<float> held_;
};

/// A folder with config.json and safetensors, a .gguf file, a llama2.c .bin with tokenizer.bin (or tokN.bin
/// of N tokens) beside it, or the model.bin of a Whisper model of CTranslate2, whose decoder alone is read.
std::unique_ptr<DecoderSource> open_decoder(const std::string& path);

std::unique_ptr<DecoderSource> open_gguf_decoder(const std::string& path);
std::unique_ptr<DecoderSource> open_llama2c_decoder(const std::string& path);
std::unique_ptr<DecoderSource> open_whisper_decoder(const std::string& path);
std::unique_ptr<DecoderSource> open_hf_decoder(const std::string& folder);

}  // namespace headwise
#pragma GCC visibility pop
