#include "headwise/intent/training/pretrained.h"

#include "headwise/model/hf_bert.h"
#include "headwise/model/hf_config.h"
#include "headwise/text/text_encoder.h"

namespace headwise {

Pretrained read_pretrained(const std::string& folder) {
  BertWeights weights(folder);
  RecognizerConfig c;
  c.encoder = weights.config();
  Vocabulary vocabulary = read_bert_vocabulary(folder, c.encoder.vocabulary);
  c.encoder.vocabulary = vocabulary.size();
  c.words = read_bert_tokenizer_config(folder + "/tokenizer_config.json").words;
  c.ngrams.buckets = 0;
  c.pooling = Pooling::mean;
  c.pool_dropout = 0.1;
  c.chunk_tokens = min_of(c.chunk_tokens, c.encoder.max_tokens);
  c.chunk_overlap = min_of(c.chunk_overlap, c.chunk_tokens / 8);
  ParamSet encoder = ParamSet::blank();
  const Transformer model(encoder, c.encoder);
  weights.load(encoder);
  return {std::move(c), std::move(vocabulary), std::move(encoder)};
}

TrainingOptions fine_tuning() {
  TrainingOptions o;
  o.epochs = 8, o.batch = 32;
  o.rate = 1e-3, o.encoder_rate = 0.15, o.layer_decay = 0.9, o.learn_embedding = false;
  o.weight_decay = 0.01;
  o.token_dropout = 0.05;
  o.average = 0;
  o.compute = DType::bf16;
  return o;
}

}  // namespace headwise
