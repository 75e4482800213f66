"""hw.Decoder against transformers: tiny random models of every family, as transformers itself writes them."""

import numpy as np
import pytest

import headwise as hw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
         "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ROPE = {"rope_type": "default", "rope_theta": 5000.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
GEMMA = SIZES | {"num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 4}
FAMILIES = {
    "gpt2": ("GPT2Config", {"vocab_size": 300, "n_positions": 128, "n_embd": 48, "n_layer": 3, "n_head": 4,
                            "bos_token_id": 1, "eos_token_id": 2}),
    "llama": ("LlamaConfig", SIZES | {"num_key_value_heads": 2, "rope_parameters": ROPE}),
    "llama, biases, own head": ("LlamaConfig", SIZES | {"attention_bias": True, "mlp_bias": True, "head_dim": 20,
                                                        "tie_word_embeddings": True}),
    "llama3": ("LlamaConfig", SIZES | {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "llama, yarn": ("LlamaConfig", SIZES | {"num_key_value_heads": 4, "rope_parameters": YARN}),
    "mistral": ("MistralConfig", SIZES | {"num_key_value_heads": 2, "sliding_window": 7}),
    "mistral, no window": ("MistralConfig", SIZES | {"num_key_value_heads": 1, "sliding_window": None}),
    "qwen2": ("Qwen2Config", SIZES | {"num_key_value_heads": 2}),
    "qwen2, window": ("Qwen2Config", SIZES | {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 5,
                                              "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", SIZES | {"num_key_value_heads": 2, "head_dim": 16}),
    "gemma": ("GemmaConfig", GEMMA),
    "gemma2": ("Gemma2Config", GEMMA | {"num_key_value_heads": 2, "sliding_window": 6, "query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3TextConfig", GEMMA | {"sliding_window": 6, "query_pre_attn_scalar": 24, "num_hidden_layers": 7}),
}
IDS = [1, 17, 4, 250, 99, 3, 3, 120, 5, 61, 7, 18, 299, 42, 42, 8, 130, 77, 201, 13, 56, 4, 9, 100]


def write(folder, name):
    """A model of the family with weights that matter: norms and biases too are drawn."""
    kind, options = FAMILIES[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, kind)(**options)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.08 if p.dim() == 1 else 0.6 / p.shape[-1] ** 0.5).add_(1.0 if p.dim() == 1 and "gemma" not in name else 0)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_text_are_those_of_transformers(tmp_path, name):
    theirs = write(tmp_path, name)
    ours = hw.Decoder(tmp_path, kv_mib=8)
    with torch.no_grad():
        want = theirs(torch.tensor([IDS])).logits[0].numpy()
        double = theirs.double()(torch.tensor([IDS])).logits[0].numpy()
        theirs.float()
    got = ours.logits(IDS)
    assert want.std() > 0.05, "a model whose logits hardly differ tests nothing"
    assert np.abs(got - want).max() < 5e-6
    assert np.abs(got - double).max() <= max(2 * np.abs(want - double).max(), 1e-6)
    with torch.no_grad():
        text = theirs.generate(torch.tensor([IDS]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours.generate(IDS, max_tokens=40, ignore_end=True).tokens == text[0, len(IDS):].tolist()
