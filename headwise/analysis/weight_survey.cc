#include "headwise/analysis/weight_survey.h"

#include "headwise/analysis/explain.h"

namespace headwise {

LayerWeights WeightSurvey::mean() const {
  LayerWeights all;
  for (const LayerWeights& layer : layers) {
    HeadFigures f = layer.figures;
    f.rows = 1;  // the means of layers weigh alike
    all.figures.add(f);
    all.apart += layer.apart / static_cast<double>(layers.size());
  }
  all.figures = all.figures.mean();
  return all;
}

WeightSurvey survey_weights(const Recognizer& r, const Corpus& corpus, Session& session, Index texts) {
  require(texts > 0, ErrorKind::bad_argument, "survey_weights", "asked for ", texts,
          " texts; give 1 or more");
  WeightSurvey s;
  const auto rows = static_cast<Index>(corpus.rows.size());
  s.texts = min_of(rows, texts);
  s.layers.resize(static_cast<std::size_t>(r.config().encoder.depth));
  std::vector<HeadsApart> apart(s.layers.size());
  for (Index i = 0; i < s.texts; ++i) {
    Taps taps;
    session.memory.reset();
    Call call{.ctx = session.ctx, .memory = session.memory};
    call.taps = &taps;
    TextBatch batch;
    r.add_to(batch, r.encode(corpus.rows[static_cast<std::size_t>(i * rows / s.texts)].text));
    r.forward(batch, call, nullptr);
    if (mixes_heads(r)) to_shares(taps);
    for (const Tap& tap : taps.all) {
      const auto layer = static_cast<std::size_t>(tap.block);
      s.heads = tap.heads;
      for (Index h = 0; h < tap.heads; ++h) s.layers[layer].figures.add(sum_rows(tap, h));
      apart[layer].add(tap);
    }
  }
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    s.layers[layer].figures = s.layers[layer].figures.mean();
    s.layers[layer].apart = apart[layer].mean();
  }
  return s;
}

}  // namespace headwise
