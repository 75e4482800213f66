// Hostile model folders: each damaged file of a pretrained encoder is one sentence, no crash, no memory.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "headwise/text/text_encoder.h"
#include "tests/base/sentence.h"
#include "tests/model/safetensors_bytes.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

std::string open(const std::string& folder) {
  try {
    const TextEncoder encoder(folder);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

struct Case {
  const char* file;
  std::string bytes;
  const char* says;  // a part of the sentence; "": accepted
};

/// The tiny settings with one value changed.
std::string config(std::string_view from, std::string_view to) {
  std::string all = TinyBert::kConfig;
  return all.replace(all.find(from), from.size(), to);
}

std::vector<Case> cases() {
  const std::string deep(10'000, '['), many(200'000, ' ');
  std::string keys = "{\"k\":0";
  for (int i = 0; i < 20'000; ++i) keys += text(",\"k", i, "\":0");
  return {
      {"config.json", "", "needs a '{' but the text ends"},
      {"config.json", "{", "a key needs a '\"' but the text ends"},
      {"config.json", "null", "needs a '{'"},
      {"config.json", "\xef\xbb\xbf{}", "needs a '{'"},
      {"config.json", std::string("{\0}", 3), "byte 1 is no UTF-8 text"},
      {"config.json", "{\"\xff\":1}", "byte 2 is no UTF-8 text"},
      {"config.json", "{\"\\ud800\":1}", "half a surrogate pair"},
      {"config.json", "{\"a\":1}x", "stands after the closing '}'"},
      {"config.json", "{\"a\":1,\"a\":2}", "\"a\" stands there twice"},
      {"config.json", "{\"a\":1,}", "a key needs a '\"'"},
      {"config.json", "{\"a\":" + deep + "}", "lies too deep"},
      {"config.json", "{\"a\":01}", "needs a value"},
      {"config.json", "{\"" + std::string(2000, 'k') + "\":1}", "longer than the 1024 bytes allowed"},
      {"config.json", many + TinyBert::kConfig, ""},
      {"config.json", keys + "}", "\"model_type\" is absent"},
      {"config.json", std::string(2 << 20, ' '), "1048576"},
      {"config.json", config("\"bert\"", "\"gpt2\""), "\"model_type\" is \"gpt2\""},
      {"config.json", config("\"bert\"", "[\"bert\"]"), "\"model_type\" is [\"bert\"]; a text is needed"},
      {"config.json", config(":8", ":-8"), "\"hidden_size\" is -8"},
      {"config.json", config(":8", ":8.5"), "\"hidden_size\" is 8.5"},
      {"config.json", config(":8", ":1e3"), "config.json makes it [12 1000]"},
      {"config.json", config(":8", ":1e-3"), "\"hidden_size\" is 1e-3"},
      {"config.json", config(":8", ":9007199254740992"), "\"hidden_size\" is 9007199254740992"},
      {"config.json", config(":8", ":18446744073709551624"), "\"hidden_size\" is 18446744073709551624"},
      {"config.json", config(":8", ":65536"), "config.json makes it [12 65536]"},
      {"config.json", config("\"num_hidden_layers\":2", "\"num_hidden_layers\":1000"),
       "has no \"encoder.layer.2."},
      {"config.json", config("\"num_hidden_layers\":2", "\"num_hidden_layers\":1"),
       "holds \"encoder.layer.1.attention.output.LayerNorm.bias\""},
      {"config.json", config("\"vocab_size\":12", "\"vocab_size\":2000000"),
       "config.json makes it [2000000 8]"},
      {"config.json", config(":7", ":1000000"), "config.json makes it [1000000 8]"},
      {"config.json", config("1e-12", "1e-999999999"), "\"layer_norm_eps\" is 1e-999999999"},
      {"config.json", config("1e-12", "NaN"), "needs a value"},
      {"config.json", config("0.1", "1"), "\"hidden_dropout_prob\" is 1;"},
      {"tokenizer_config.json", "[]", "needs a '{'"},
      {"tokenizer_config.json", R"({"do_lower_case":"yes"})", "\"do_lower_case\" is \"yes\"; true or false"},
      {"tokenizer_config.json", R"({"model_max_length":-1})", "\"model_max_length\" is -1"},
      {"tokenizer_config.json", R"({"cls_token":{"content":7}})", "\"content\" is 7; a text is needed"},
      {"tokenizer_config.json", R"({"tokenizer_class":"T5Tokenizer"})",
       "\"tokenizer_class\" is \"T5Tokenizer\""},
      {"sentence_bert_config.json", R"({"max_seq_length":0})", "\"max_seq_length\" is 0"},
      {"sentence_bert_config.json", R"({"max_seq_length":1e9})", "\"max_seq_length\" is 1e9"},
      {"1_Pooling/config.json", R"({"pooling_mode_max_tokens":true})", "\"pooling_mode_max_tokens\" is true"},
      {"vocab.txt", "", "holds no piece"},
      {"vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\na\n", "is the same as piece 3"},
      {"vocab.txt", "[UNK]\n\n[CLS]\n", "is empty"},
      {"vocab.txt", "[UNK]\n\xff\n", "UTF-8"},
      {"vocab.txt", "a\nb\n", "vocab.txt has no [UNK]"},
      {"vocab.txt", "[UNK]\na\n", "vocab.txt has no [CLS]"},
      {"vocab.txt", "[UNK]\n[CLS]\n[SEP]\n" + std::string(1 << 20, 'x') + "\n", "1024"},
      {"model.safetensors", "", "has 0 bytes"},
      {"model.safetensors", length_of(~0ull) + "{}", "its header claims 18446744073709551615 bytes"},
      {"model.safetensors", file_of("{}", ""), "has no \"embeddings.word_embeddings.weight\""},
      {"model.safetensors.index.json", "{}", "it has no weight_map"},
      {"model.safetensors.index.json", R"({"weight_map":{"a":"/etc/passwd"}})",
       "its shard is \"/etc/passwd\""},
      {"model.safetensors.index.json", R"({"weight_map":{"a":"model.safetensors.index.json"}})",
       "its shard is"},
      {"model.safetensors.index.json", R"({"weight_map":{"a":"gone.safetensors"}})", "cannot open"},
      {"model.safetensors.index.json", R"({"weight_map":{"a":"model.safetensors"}})", "does not name"},
  };
}

TEST(HostileFolder, EveryDamagedFileIsOneSentence) {
  struct rusage before {
  }, after{};
  getrusage(RUSAGE_SELF, &before);
  for (const Case& c : cases()) {
    const TinyBert tiny;
    std::filesystem::create_directory(tiny.folder / "1_Pooling");
    tiny.folder.file(c.file, c.bytes);
    const std::string said = open(tiny.folder.path());
    const std::string begin = text(c.file, ": ", c.bytes.substr(0, 60));
    if (c.says[0] == '\0') {
      EXPECT_EQ(said, "") << begin;
    } else {
      EXPECT_NE(said.find(c.says), std::string::npos) << begin << "\nsaid " << said;
    }
    EXPECT_LT(said.size(), 1000u) << begin;
    EXPECT_EQ(said.find('\n'), std::string::npos) << begin;
  }
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 256 << 10);  // KiB; sanitizers keep what was freed
}

TEST(HostileFolder, FilesThatAreNoFiles) {
  for (const char* file : {"config.json", "vocab.txt", "model.safetensors", "tokenizer_config.json"}) {
    const TinyBert tiny;
    const std::string path = tiny.folder / file, real = tiny.folder.file("real", "{}");
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_NE(open(tiny.folder.path()).find("is no regular file"), std::string::npos) << file;
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    EXPECT_NE(open(tiny.folder.path()).find("is no regular file"), std::string::npos) << file;
    std::filesystem::remove(path);
    ASSERT_EQ(::symlink(real.c_str(), path.c_str()), 0);
    EXPECT_NE(open(tiny.folder.path()).find("it is a link"), std::string::npos) << file;
  }
}

TEST(HostileFolder, AFileThatGrowsAndShrinksWhileItIsRead) {
  const TinyBert tiny;
  const std::string path = tiny.folder / "model.safetensors", whole = content_of(path);
  const auto bytes = static_cast<off_t>(whole.size());
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (off_t i = 0; !stop; ++i) {
      const off_t size = i % 3 == 0 ? bytes : i % 3 == 1 ? bytes + 4096 : bytes / 2;
      if (::truncate(path.c_str(), size) != 0) break;
    }
  });
  int refused = 0;
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);  // for the writer to get a core
  for (int i = 0; i < 200 || (refused == 0 && std::chrono::steady_clock::now() < end); ++i)
    refused += open(tiny.folder.path()) != "";
  stop = true;
  writer.join();
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace headwise
