// PlantedHead: which pieces are of its class, its weights, the gradient of its bias, its place in a folder.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/recognizer/planted_head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/text/roles.h"
#include "tests/ops/row_op_cases.h"

namespace headwise {
namespace {

using test::error_of;
using test::value;

Vocabulary pieces() {
  return Vocabulary(
      {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pay", "3", "##7", "two", "##two", "now", "第"});
}
Recognizer planted(std::string where, std::string heads = "mha:heads=2,dim=4") {
  RecognizerConfig c;
  c.encoder.model_dim = 8, c.encoder.feed_dim = 8, c.encoder.depth = 2, c.encoder.heads = std::move(heads);
  c.labels = {"x", "y", "z"}, c.planted = planted_text(where, RoleBook::builtin());
  return Recognizer(c, pieces(), 3, DType::f64);
}

TEST(PlantedHead, LooksAtTokensOfItsClass) {
  for (const auto& [where, layer, head] : {std::tuple("number:0", 0, 0), std::tuple("number:1.1", 1, 1)}) {
    const Recognizer r = planted(where);
    Session session;
    const std::vector<std::string> texts = {"pay 37 now", "第 two pay", "pay now"};
    const TextBatch batch = r.batch(texts);
    Taps taps;
    Call call{.ctx = session.ctx, .memory = session.memory};
    call.taps = &taps;
    r.forward(batch, call, nullptr);
    for (const Tap& t : taps.all) {
      // [CLS] pay 3 ##7 now [SEP], [CLS] 第 two pay [SEP], [CLS] pay now [SEP]: it rests on [CLS]
      const double mass = t.sequence == 0   ? t.at(head, 1, 2) + t.at(head, 1, 3)
                          : t.sequence == 1 ? t.at(head, 0, 1) + t.at(head, 0, 2)
                                            : t.at(head, 1, 0);
      EXPECT_EQ(mass > 0.6, t.block == layer) << where << " block " << t.block;
    }
  }
}

TEST(PlantedHead, BiasHasItsGradient) {
  for (const std::string heads :
       {"mha:heads=2,dim=4", "differential:heads=2,dim=2", "mha:heads=2,dim=4+gated:source=input,act=silu"}) {
    Recognizer r = planted("number:1", heads);
    r.params().make_grads();
    r.params().zero_grads();
    const auto param = std::find_if(r.params().all().begin(), r.params().all().end(),
                                    [](const Param& p) { return p.name == "planted.bias"; });
    ASSERT_NE(param, r.params().all().end());
    EXPECT_EQ(value(param->value, 0), 3);
    Session session;
    const std::vector<std::string> texts = {"pay 37 now", "two pay", "pay"};
    const TextBatch batch = r.batch(texts);
    Tensor w = random_normal({3, 3}, DType::f64, 5);
    const auto loss = [&](Recognizer::Saved* saved, double step) {
      session.memory.reset();
      static_cast<double*>(param->value.data)[0] += step;
      Call call{.ctx = session.ctx, .memory = session.memory};
      const AnyView y = r.forward(batch, call, saved);
      double sum = 0;
      for (Index i = 0; i < 9; ++i) sum += value(y, i) * value(w.view(), i);
      if (saved) r.backward(w.view(), call, *saved);
      static_cast<double*>(param->value.data)[0] -= step;
      return sum;
    };
    Recognizer::Saved saved;
    loss(&saved, 0);
    const double slope = (loss(nullptr, 1e-5) - loss(nullptr, -1e-5)) / 2e-5;
    EXPECT_GT(std::abs(slope), 1e-6);
    EXPECT_NEAR(value(param->grad, 0), slope, 1e-8 * std::max(1.0, std::abs(slope))) << heads;
  }
}

TEST(PlantedHead, StaysInTheFolderWithItsWords) {
  const RecognizerConfig c = planted("negator:1.0").config();
  EXPECT_TRUE(c.planted.starts_with("1.0 class negator: not | n't | no"));
  const RecognizerConfig again = parse_config(config_text(c), "test");
  EXPECT_EQ(again.planted, c.planted);
  RecognizerConfig none = c;
  none.planted = "";
  EXPECT_EQ(config_text(none).find("planted"), std::string::npos);
  EXPECT_EQ(parse_config(config_text(none), "test").planted, "");
}

TEST(PlantedHead, BadRequestsAreOneSentence) {
  const auto text = [](std::string_view request) {
    return error_of([&] { planted_text(request, RoleBook::builtin()); });
  };
  EXPECT_EQ(text("number"), "planted head: got \"number\"; give CLASS:HEAD or CLASS:LAYER.HEAD, as number:0");
  EXPECT_EQ(text("number:x"),
            "planted head: got \"number:x\"; give CLASS:HEAD or CLASS:LAYER.HEAD, as number:0");
  EXPECT_EQ(text("any:0"),
            "planted head: there is no class \"any\"; classes are number, rate, change, negator, entity");
  EXPECT_EQ(error_of([] { planted("number:2"); }),
            "planted head: head 2 is asked but a layer has 2; heads count from 0");
  EXPECT_EQ(error_of([] { planted("number:2.0"); }),
            "planted head: layer 2 is asked but the encoder has 2; layers count from 0");
}

}  // namespace
}  // namespace headwise
