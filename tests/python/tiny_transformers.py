"""Tiny random models of transformers, one a family, and what they are asked: the oracle is their own eager attention."""
# SPDX-License-Identifier: Apache-2.0

import copy
import functools

import headwise as hw
import torch
import transformers as hf

SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=61)
GROUPED = dict(SIZES, num_key_value_heads=2, head_dim=8, max_position_embeddings=128, pad_token_id=0)
ENCODER = dict(SIZES, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0)
PAIR = dict(
    d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=61, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    decoder_start_token_id=1,
)  # fmt: skip

# family: (class, config, kind); decoders and pairs generate, vision has no padding.
FAMILIES = {
    "BERT": ("BertForMaskedLM", "BertConfig", ENCODER, "encoder"),
    "RoBERTa": ("RobertaForMaskedLM", "RobertaConfig", ENCODER, "encoder"),
    "ModernBERT": (
        "ModernBertForMaskedLM", "ModernBertConfig",
        dict(SIZES, num_hidden_layers=4, max_position_embeddings=64, local_attention=8, pad_token_id=0, cls_token_id=1,
             sep_token_id=2, bos_token_id=1, eos_token_id=2),
        "encoder",
    ),
    "GPT-2": (
        "GPT2LMHeadModel", "GPT2Config",
        dict(n_embd=32, n_layer=2, n_head=4, vocab_size=61, n_positions=64, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
             pad_token_id=0, bos_token_id=1, eos_token_id=None),
        "decoder",
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, "decoder"),
    "Mistral": ("MistralForCausalLM", "MistralConfig", dict(GROUPED, sliding_window=7), "decoder"),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, "decoder"),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED, "decoder"),
    "Gemma 2": (
        "Gemma2ForCausalLM", "Gemma2Config",
        dict(GROUPED, sliding_window=6, attn_logit_softcapping=0.5, query_pre_attn_scalar=8), "decoder",
    ),
    "Gemma 3": (
        "Gemma3ForCausalLM", "Gemma3TextConfig",
        dict(GROUPED, sliding_window=6, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]),
        "decoder",
    ),
    "GPT-OSS": (
        "GptOssForCausalLM", "GptOssConfig",
        dict(GROUPED, sliding_window=6, num_local_experts=2, num_experts_per_tok=1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), "decoder",
    ),
    "T5": (
        "T5ForConditionalGeneration", "T5Config",
        dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=61, dropout_rate=0.0, pad_token_id=0,
             eos_token_id=None, decoder_start_token_id=1),
        "pair",
    ),
    "Bart": ("BartForConditionalGeneration", "BartConfig", dict(PAIR, max_position_embeddings=64, forced_eos_token_id=None), "pair"),
    "Whisper": (
        "WhisperForConditionalGeneration", "WhisperConfig",
        dict(PAIR, num_mel_bins=8, max_source_positions=12, max_target_positions=40, begin_suppress_tokens=None,
             suppress_tokens=None),
        "speech",
    ),
    "ViT": (
        "ViTForImageClassification", "ViTConfig",
        dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4,
             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        "vision",
    ),
    "Bloom": (
        "BloomForCausalLM", "BloomConfig",
        dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=61, hidden_dropout=0.0, attention_dropout=0.0, pad_token_id=0,
             eos_token_id=None),
        "decoder",
    ),
}  # fmt: skip


@functools.cache
def _made(family):
    name, config, words, _ = FAMILIES[family]
    torch.manual_seed(3)
    config = getattr(hf, config)(**words)
    config._experts_implementation = "eager"
    model = getattr(hf, name)(config).float().eval()
    with torch.no_grad():  # small random weights look at all keys alike, and would hide a wrong mask
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


# Families that do not ask which attention is wanted, in one version or another; hw.torch.swap exchanges their layers.
SWAPPED = ("Bloom", "ModernBERT", "T5")


def model_of(family, how):
    """how: an attn_implementation, or "swap": hw.torch.swap on the model as it comes."""
    base = _made(family)
    words = {} if how == "swap" else {"attn_implementation": how}
    model = type(base)._from_config(copy.deepcopy(base.config), **words).eval()
    model.load_state_dict(base.state_dict())
    if how == "swap":
        hw.torch.swap(model)
    if model.can_generate():
        model.generation_config.update(eos_token_id=None, pad_token_id=0, bos_token_id=1)
    return model


def inputs_of(family, padding=None):
    """Ids, images or features; padding: "left" or "right", of two texts out of three."""
    kind = FAMILIES[family][3]
    random = torch.Generator().manual_seed(5)
    if kind == "vision":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=random)}
    if kind == "speech":
        return {
            "input_features": torch.randn(2, 8, 24, generator=random),
            "decoder_input_ids": torch.randint(3, 61, (2, 9), generator=random),
        }
    ids = torch.randint(3, 61, (3, 17), generator=random)
    given = {"input_ids": ids}
    if padding:
        tokens = torch.ones_like(ids)
        for row, count in ((1, 5), (2, 11)):
            tokens[row, :count] = 0
        tokens = tokens if padding == "left" else tokens.flip(1)
        given.update(input_ids=ids * tokens, attention_mask=tokens)
    if kind == "pair":
        given["decoder_input_ids"] = torch.randint(3, 61, (3, 9), generator=random)
    return given


def real(family, given, logits):
    """Logits of tokens; what stands at padding is nobody's."""
    tokens = given.get("attention_mask")
    return logits if tokens is None or FAMILIES[family][3] == "pair" else logits[tokens.bool()]
