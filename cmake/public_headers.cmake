# The headers users may include: these are installed, every other header is private. A public header includes public ones only
# (tools/check_floors.py). Each head of headwise/heads is public without a line here; so are version.h and heads/list.inc, which
# CMake writes.
set(HEADWISE_PUBLIC_HEADERS
    headwise/headwise.h
    headwise/base/arena.h headwise/base/buffer.h
    headwise/base/callable.h headwise/base/context.h headwise/base/device.h headwise/base/dtype.h
    headwise/base/e4m3.h headwise/base/error.h headwise/base/half.h headwise/base/index.h headwise/base/param.h
    headwise/base/random.h headwise/base/threads.h headwise/base/view.h
    headwise/spec/backward.h headwise/spec/gemm.h headwise/spec/head.h headwise/spec/mask.h headwise/spec/mask_terms.h
    headwise/spec/key_share.h headwise/spec/packed_keys.h headwise/spec/pages.h headwise/spec/probe.h headwise/spec/problem.h headwise/spec/rope.h
    headwise/spec/row_lists.h headwise/spec/run_facts.h headwise/spec/score.h headwise/spec/stored.h headwise/spec/terms.h
    headwise/kernels/candidate.h headwise/kernels/device_status.h headwise/kernels/gemm_candidate.h headwise/kernels/takes.h
    headwise/masks/mask.h
    headwise/ops/attention/attention.h headwise/ops/attention/backward.h headwise/ops/attention/plan_shelf.h
    headwise/ops/device/memory.h headwise/ops/device/params.h
    headwise/ops/explain/explain.h headwise/ops/explain/roofline.h headwise/ops/keys/packed_keys.h
    headwise/ops/keys/quantize_kv.h headwise/ops/norm/layer_norm.h headwise/ops/norm/norm.h
    headwise/ops/projection/backward.h headwise/ops/projection/projection.h headwise/ops/projection/stored_matrix.h headwise/ops/route/route_heads.h
    headwise/ops/row/activation.h headwise/ops/row/cross_entropy.h headwise/ops/row/dropout.h
    headwise/ops/row/embedding.h headwise/ops/row/rope.h
    headwise/heads/any_head.h headwise/heads/collaborative_fit.h headwise/heads/config.h headwise/heads/cost.h headwise/heads/head.h
    headwise/heads/sums.h headwise/heads/run.h headwise/heads/scales.h headwise/heads/windows.h
    headwise/cache/head_policy.h headwise/cache/kv_cache.h
    headwise/distributed/communicator.h headwise/distributed/engine.h headwise/distributed/order.h
    headwise/distributed/rank_costs.h headwise/distributed/slices.h headwise/distributed/threads_engine.h
    headwise/layers/basic/block_parts.h headwise/layers/basic/cut_vocabulary.h headwise/layers/basic/embed.h headwise/layers/basic/feed_forward.h headwise/layers/basic/linear.h
    headwise/layers/basic/leaves.h headwise/layers/basic/module.h headwise/layers/basic/norm_layer.h headwise/layers/basic/packed_weights.h headwise/layers/multi_head/merged.h headwise/layers/transformer/mirror.h
    headwise/layers/multi_head/cut_head.h headwise/layers/multi_head/multi_head.h headwise/layers/multi_head/suggest_heads.h headwise/layers/multi_head/taps.h
    headwise/layers/transformer/block.h headwise/layers/transformer/stack.h headwise/layers/transformer/torch_state.h
    headwise/layers/transformer/transformer.h
    headwise/model/gguf/gguf.h headwise/model/gguf/blocks.h headwise/model/hf_bert.h headwise/model/hf_config.h
    headwise/model/json_object.h headwise/model/safetensors.h headwise/model/shards.h headwise/model/word_rules.h
    headwise/train/checkpoints/checkpoint.h
    headwise/train/steps/cut_params.h headwise/train/data.h headwise/train/gates.h headwise/train/steps/late_loss.h
    headwise/train/next_token.h
    headwise/train/steps/optimizer.h headwise/train/progress.h headwise/train/steps/schedule.h headwise/train/train_log.h
    headwise/train/trainer.h
    headwise/text/bpe.h
    headwise/c/headwise.h)
# Those of headwise::text.
set(HEADWISE_TEXT_PUBLIC_HEADERS
    headwise/text/pieces/tokenizer.h headwise/text/pieces/tokenizer_gguf.h headwise/text/pieces/tokenizer_json.h
    headwise/text/roles.h headwise/text/text_encoder.h headwise/text/train_wordpiece.h headwise/text/vocabulary.h
    headwise/text/wordpiece.h headwise/text/words.h
    headwise/intent/compound/cuts.h headwise/intent/corpus/builtin.h headwise/intent/corpus/corpus.h headwise/intent/corpus/grammar.h
    headwise/intent/corpus/report.h headwise/intent/recognizer/chunks.h headwise/intent/recognizer/label_scores.h
    headwise/intent/recognizer/model_folder.h headwise/intent/recognizer/learnt_gates.h headwise/intent/recognizer/ngrams.h
    headwise/intent/recognizer/planted_head.h headwise/intent/recognizer/pooling.h
    headwise/intent/recognizer/recognizer.h headwise/intent/training/evaluation.h headwise/intent/training/pretrained.h
    headwise/intent/training/scope/strangers.h headwise/intent/training/training.h
    headwise/c/decoder.h headwise/c/recognizer.h
    headwise/decoder/files/config.h headwise/decoder/files/hf_config.h headwise/decoder/files/save_folder.h
    headwise/decoder/files/source.h
    headwise/decoder/forward/cut.h headwise/decoder/forward/decoder.h headwise/decoder/forward/kv_file.h headwise/decoder/forward/memory.h
    headwise/decoder/forward/weights.h
    headwise/decoder/chat_template.h headwise/decoder/decoder_host.h headwise/decoder/drafter.h headwise/decoder/generator.h
    headwise/decoder/sampling.h headwise/decoder/text_stream.h)
