// ChatTemplate: conversations as the tokens a model was trained on, by its own template if known.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/text/pieces/tokenizer.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ChatMessage {
  std::string role, content;  // system, user or assistant
};

/// Templates are programs in files. None is run: those known are found by their exact text and written out
/// here.
class ChatTemplate {
 public:
  /// Empty: the template is none of chatml (with a system text of its own or without), llama2, llama3,
  /// mistral (of versions 0.1 and 0.2) and gemma.
  static std::optional<ChatTemplate> find(std::string_view text);

  /// The tokens of a conversation up to where the model answers. What a message holds stays text: special
  /// tokens spelt out in it do not become themselves. Throws where the template has no place for a message.
  std::vector<TokenId> encode(std::span<const ChatMessage> messages, const Tokenizer& tokenizer) const;

  std::string_view name() const;

 private:
  enum class Kind : std::uint8_t { chatml, llama2, llama3, mistral, gemma };
  /// A special token, or text between two of them.
  struct Part {
    std::string text;
    bool special = false;
  };
  ChatTemplate(Kind kind, std::string system) : kind_(kind), system_(std::move(system)) {}
  void check(std::span<const ChatMessage> messages) const;
  void turn(const ChatMessage& message, std::vector<Part>& out) const;
  std::vector<Part> parts_of(std::span<const ChatMessage> messages) const;
  /// The templates of [INST]: nothing opens the turn of the model.
  bool instructs() const { return kind_ == Kind::llama2 || kind_ == Kind::mistral; }

  Kind kind_;
  std::string system_;  // chatml: said where a conversation begins without one; mistral: behind an answer
};

}  // namespace headwise
#pragma GCC visibility pop
