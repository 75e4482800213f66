// write_page OUT LAYERS HEADS MISTAKES [redact]: the report page of an untrained model over hostile and plain
// utterances, for the test in a browser.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "headwise/analysis/report/report.h"
#include "headwise/intent/corpus/builtin.h"
#include "headwise/text/train_wordpiece.h"

using namespace headwise;

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const Index layers = std::atoi(argv[2]), heads = std::atoi(argv[3]), mistakes = std::atoi(argv[4]);
  Corpus corpus = builtin_corpus({.train = 1, .dev = 0, .test = mistakes}).test;
  const std::vector<std::string> hostile = {"<script>document.title = 'run'</script> pay 40",
                                            "pay \xE2\x80\xAE"
                                            "evil\xE2\x80\xAC <img src=x onerror=alert(1)>",
                                            std::string(10240, 'x') + " pay",
                                            "bytes \xFF\xFE\xC3 that are no text",
                                            "Anna <b>pays</b> \"Mr Li\" 300 &amp; ${1} </script>"};
  std::string long_text = "please";
  for (int i = 0; i < 60; ++i) long_text += i % 2 ? " transfer" : " unbelievable";
  if (corpus.rows.size() > hostile.size()) corpus.rows[hostile.size()].text = long_text;
  for (std::size_t i = 0; i < hostile.size() && i < corpus.rows.size(); ++i) corpus.rows[i].text = hostile[i];
  RecognizerConfig c;
  c.encoder.model_dim = 4 * heads, c.encoder.feed_dim = 32, c.encoder.depth = layers;
  c.encoder.heads = "mha:heads=" + std::to_string(heads);
  c.multi_label = true;
  for (const Utterance& u : corpus.rows)
    for (const std::string& l : u.labels)
      if (std::find(c.labels.begin(), c.labels.end(), l) == c.labels.end()) c.labels.push_back(l);
  c.labels.back() += "</script>";
  const std::vector<Utterance> plain = builtin_corpus({.train = 300, .dev = 0, .test = 1}).train.rows;
  std::vector<std::string_view> texts;
  for (const Utterance& u : plain) texts.push_back(u.text);
  const Recognizer model(c, train_wordpiece(texts, {.pieces = 1500}), 1);
  Session session;
  ReportOptions o;
  o.model = "Untrained <model>", o.data = "hostile.tsv";
  o.redact = argc > 5, o.mistakes = mistakes;
  o.survey.utterances = 20;
  o.curves = {{"loss", {{0, 3.4}, {10, 1.2}, {20, 0.7}, {30, 0.61}}},
              {"accuracy", {{0, 0.03}, {10, 0.6}, {20, 0.8}, {30, 0.84}}}};
  const Report made = make_report(model, corpus, RoleBook::builtin(), session, o);
  std::ofstream(argv[1], std::ios::binary) << made.page;
  std::printf("%lld mistakes, %zu bytes\n", static_cast<long long>(made.shown), made.page.size());
}
