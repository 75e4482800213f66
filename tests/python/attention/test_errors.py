"""Bad input: one sentence each, with the values, the need and the way out, word by word."""

import numpy as np
import pytest
import torch

import headwise as hw


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


Q, K, V = ones(2, 5, 4, 8), ones(2, 7, 2, 8), ones(2, 7, 2, 8)
READ_ONLY = ones(2, 5, 4, 8)
READ_ONLY.flags.writeable = False
TWICE = ones(2, 7, 2, 16)
AT_ODD_BYTE = np.zeros(2 * 7 * 2 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(2, 7, 2, 8)


# (arguments, exception, sentence)
CASES = {
    "rank": (
        dict(q=ones(5, 4, 8)),
        ValueError,
        "attention: q is f32 [5 4 8] but 4 axes are needed, [batch tokens heads dim]; "
        "ragged batches of 3 axes come with q_offsets and kv_offsets",
    ),
    "rank bhsd": (
        dict(q=ones(8), layout="bhsd"),
        ValueError,
        "attention: q is f32 [8] but 4 axes are needed, [batch heads tokens dim]; "
        "ragged batches of 3 axes come with q_offsets and kv_offsets",
    ),
    "five axes": (dict(q=ones(1, 2, 5, 4, 8)), ValueError, "attention: q has 5 axes; at most 4 are possible"),
    "heads": (
        dict(q=ones(2, 5, 3, 8)),
        ValueError,
        "attention: heads (3) must be a multiple of kv_heads (2) of k; repeat or drop heads of k until it is",
    ),
    "head_dim": (
        dict(k=ones(2, 7, 2, 9)),
        ValueError,
        "attention: q has head_dim 8 but k has 9; their products need equal widths",
    ),
    "batch": (
        dict(k=ones(3, 7, 2, 8)),
        ValueError,
        "attention: k is f32 [3 7 2 8] but f32 [2 7 2 8] is needed, [batch kv_tokens kv_heads head_dim]",
    ),
    "tokens": (
        dict(v=ones(2, 6, 2, 8)),
        ValueError,
        "attention: v is f32 [2 6 2 8] but f32 [2 7 2 8] is needed, [batch kv_tokens kv_heads value_dim]",
    ),
    "dtype pair": (
        dict(k=ones(2, 7, 2, 8, dtype=np.float16)),
        TypeError,
        "attention: k is f16 [2 7 2 8] but f32 [2 7 2 8] is needed, [batch kv_tokens kv_heads head_dim]",
    ),
    "integers": (
        dict(q=ones(2, 5, 4, 8, dtype=np.int64)),
        TypeError,
        "attention: q, k and v are i64; use f32, bf16, f16 or f64",
    ),
    "complex": (
        dict(q=ones(2, 5, 4, 8, dtype=np.complex64)),
        TypeError,
        "attention: q holds complex64; give float32, bfloat16, float16 or float64",
    ),
    "byte order": (
        dict(q=ones(2, 5, 4, 8, dtype=">f4")),
        TypeError,
        "attention: q holds >f4; give float32, bfloat16, float16 or float64",
    ),
    "int8": (
        dict(k=ones(2, 7, 2, 8, dtype=np.int8), v=ones(2, 7, 2, 6, dtype=np.int8)),
        ValueError,
        "attention: k is i8 but k_scale is not given; pass the f32 scales quantize_kv wrote, [batch kv_tokens kv_heads]",
    ),
    "k_scale": (
        dict(k_scale=ones(2, 7, 2)),
        ValueError,
        "attention: k_scale is given but the plan was made without 8-bit keys and values; plan with it or leave k_scale empty",
    ),
    "v_scale": (
        dict(v_scale=ones(2)),
        ValueError,
        "attention: v_scale is f32 [2] but 3 axes are needed, [batch tokens heads dim] without dim",
    ),
    "no array": (
        dict(q=3.0),
        TypeError,
        "attention: q is a float; give a NumPy array or a torch tensor (numpy.from_dlpack reads others without a copy)",
    ),
    "None": (
        dict(k=None),
        TypeError,
        "attention: k is a NoneType; give a NumPy array or a torch tensor (numpy.from_dlpack reads others without a copy)",
    ),
    "two kinds": (
        dict(k=torch.ones(2, 7, 2, 8)),
        TypeError,
        "attention: q is a numpy.ndarray but k is a torch.Tensor; give arrays of one kind",
    ),
    "negative step": (
        dict(k=K[:, ::-1]),
        ValueError,
        "attention: k has step -16 on axis 1, and steps must not be negative; make a contiguous copy of it",
    ),
    "unaligned": (
        dict(k=AT_ODD_BYTE),
        ValueError,
        "attention: k does not lie on a multiple of 4 bytes; make an aligned copy of it",
    ),
    "bool mask": (
        dict(mask=ones(5, 7, dtype=bool)),
        TypeError,
        "attention: mask is a numpy.ndarray; give Mask.dense(x) where true means may attend, "
        "Mask.from_blocked(x) where true means may not, or a list of one Mask per head",
    ),
    "torch mask": (
        dict(mask=torch.ones(5, 7, dtype=torch.bool)),
        TypeError,
        "attention: mask is a torch.Tensor; give Mask.dense(x) where true means may attend, "
        "Mask.from_blocked(x) where true means may not, or a list of one Mask per head",
    ),
    "mask list": (
        dict(mask=[hw.Mask.causal(), "causal"]),
        TypeError,
        "attention: an entry of mask is a str; give a headwise.Mask per head",
    ),
    "masks per head": (
        dict(mask=[hw.Mask.causal()] * 3),
        ValueError,
        "attention: mask has 3 per-head masks but there are 4 heads; give one, or one per head",
    ),
    "lengths": (
        dict(mask=hw.Mask.lengths([1, 2, 3])),
        ValueError,
        "attention: mask lengths(...) has 3 lengths but batch is 2; give one length per sequence",
    ),
    "dense size": (
        dict(mask=hw.Mask.dense(ones(5, 6, dtype=bool))),
        ValueError,
        "attention: dense mask is [1 1 5 6] but [2 4 5 7] is needed, [batch heads q_tokens kv_tokens]; any of them may be 1, which repeats",
    ),
    "nan scale": (
        dict(scale=float("nan")),
        ValueError,
        "attention: scale is nan for head 0; give a finite number, or none for 1 / sqrt(head_dim)",
    ),
    "scale type": (dict(scale="big"), TypeError, "attention: scale is a str; give a number"),
    "scale count": (
        dict(scale=ones(3)),
        ValueError,
        "attention: scale is f32 [3] but f32 or f64 [4] is needed, [heads] or [1]; a size of 1 repeats",
    ),
    "softcap": (
        dict(softcap=-1.0),
        ValueError,
        "attention: softcap is -1; give a number from 1e-30 to 1e30, or 0 for none",
    ),
    "bias": (
        dict(bias=ones(6, 7)),
        ValueError,
        "attention: bias is f32 [1 1 6 7] but f32 or bf16 or f16 or f64 [2 4 5 7] is needed, "
        "[batch heads q_tokens kv_tokens]; a size of 1 repeats",
    ),
    "slopes": (
        dict(alibi=ones(3)),
        ValueError,
        "attention: alibi slopes is f32 [3] but f32 or bf16 or f16 or f64 [4] is needed, [heads]",
    ),
    "relative": (
        dict(relative=ones(32, 4)),
        TypeError,
        "attention: relative is a numpy.ndarray; give headwise.T5(table, bidirectional, max_distance)",
    ),
    "sinks": (
        dict(sinks=ones(2)),
        ValueError,
        "attention: sinks is f32 [2] but f32 or bf16 or f16 or f64 [4] is needed, [heads]",
    ),
    "gate": (
        dict(gate=ones(2, 4, 5)),
        ValueError,
        "attention: gate is f32 [2 4 5] but f32 or bf16 or f16 or f64 [2 5 4] is needed, [batch q_tokens heads]",
    ),
    "seed": (dict(seed=-1), ValueError, "attention: seed is -1; give an integer from 0 to 2^64 - 1"),
    "q_start type": (
        dict(q_start=1.5),
        TypeError,
        "attention: q_start is a float; give integers, as an int32 or int64 array [n] or a list",
    ),
    "q_start count": (
        dict(q_start=[1, 2, 3]),
        ValueError,
        "attention: q_start is i64 [3] but i64 [2] is needed, [batch] or [1]; a size of 1 repeats",
    ),
    "one offset": (
        dict(q=ones(5, 4, 8), k=ones(7, 2, 8), v=ones(7, 2, 8), q_offsets=[0, 5]),
        ValueError,
        "attention: q_offsets came without kv_offsets; ragged batches need both (the same array for self-attention)",
    ),
    "offsets": (
        dict(
            q=ones(5, 4, 8), k=ones(7, 2, 8), v=ones(7, 2, 8), q_offsets=[0, 3, 2, 5], kv_offsets=[0, 1, 2, 7]
        ),
        ValueError,
        "attention: q_offsets go from 3 to 2 at sequence 1; offsets start at 0 and never fall",
    ),
    "offsets end": (
        dict(q=ones(5, 4, 8), k=ones(7, 2, 8), v=ones(7, 2, 8), q_offsets=[0, 4], kv_offsets=[0, 7]),
        ValueError,
        "attention: q_offsets run from 0 to 4 but must run from 0 to 5, the rows of the tensor",
    ),
    "layout": (
        dict(layout="shape"),
        ValueError,
        'attention: layout is "shape"; give "bshd", "bhsd" or "sbhd" (docs/python.md lists the aliases)',
    ),
    "read-only": (dict(out=READ_ONLY), ValueError, "attention: out is read-only; give a writable array"),
    "out shape": (
        dict(out=ones(2, 5, 4, 9)),
        ValueError,
        "attention: out is f32 [2 5 4 9] but f32 [2 5 4 8] is needed, [batch q_tokens heads value_dim]",
    ),
    "out kind": (
        dict(out=torch.ones(2, 5, 4, 8)),
        TypeError,
        "attention: q is a numpy.ndarray but out is a torch.Tensor; give arrays of one kind",
    ),
    "out overlaps": (
        dict(q=TWICE[..., :8], k=TWICE[..., 8:], v=TWICE[..., 8:], out=TWICE[..., :8]),
        ValueError,
        "attention: out overlaps q in memory, or interleaves with it in a way that cannot be told apart; "
        "give out memory of its own",
    ),
    "out repeats": (
        dict(out=np.lib.stride_tricks.as_strided(ones(8), (2, 5, 4, 8), (0, 0, 0, 4), writeable=True)),
        ValueError,
        "attention: out is f32 [2 5 4 8] with steps that put two elements in one place; give it memory of its own",
    ),
    "return_lse": (dict(return_lse=1), TypeError, "attention: return_lse is an int; give True or False"),
    "probe": (
        dict(probe=True),
        TypeError,
        "attention: probe is a bool; give a headwise.Probe or headwise.Scores",
    ),
    "classes": (
        dict(probe=hw.Probe(classes=ones(6, dtype=np.int64))),
        ValueError,
        "attention: probe classes are [1 6] but [2 7] is needed, [batch kv_tokens]; one row repeats",
    ),
    "picks": (
        dict(probe=hw.Probe(picks=[(0, 4, 0)])),
        ValueError,
        "attention: picked row 0 is (0, 4, 0) but there are [2 4 5] rows, [batch heads q_tokens]",
    ),
    "stage": (
        dict(probe=hw.Scores(stage="raw")),
        ValueError,
        'probe: stage is "raw"; give scaled, softcapped, biased or weights',
    ),
    "kernel name": (
        dict(kernels="cpu/quick"),
        ValueError,
        'attention: there is no kernel "cpu/quick" for CPU tensors; there are: cpu/decode, cpu/online, cpu/mixed, cpu/mixed_twice, cpu/entmax, cpu/f64, ref',
    ),
    "ctx": (dict(ctx=4), TypeError, "attention: ctx is an int; give a headwise.Context"),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_refuses_in_words(case):
    changed, exception, sentence = CASES[case]
    with pytest.raises(exception) as caught:
        hw.attention(**{"q": Q, "k": K, "v": V, **changed})
    assert str(caught.value) == sentence


@pytest.mark.parametrize("p, word", [(1.0, "1"), (-0.1, "-0.1"), (float("nan"), "nan")])
def test_dropout_is_a_probability_below_one(p, word):
    with pytest.raises(ValueError) as caught:
        hw.attention(Q, K, V, dropout=p)
    assert (
        str(caught.value)
        == f"attention: dropout is {word}; it is a probability from 0 up to but not including 1"
    )


def test_a_strict_list_of_kernels_throws_with_every_refusal():
    with pytest.raises(NotImplementedError) as caught:
        hw.attention(*(x.astype(np.float64) for x in (Q, K, V)), kernels="cpu/online")
    first, *refusals = str(caught.value).splitlines()
    assert first == 'attention: every kernel of "cpu/online" refused; add ref to the list'
    assert len(refusals) == 1 and refusals[0].startswith("  cpu/online: ") and "f64" in refusals[0]


def test_scores_beyond_64_million_entries_are_refused():
    x = np.broadcast_to(np.float32(0), (1, 8193, 1, 1))
    with pytest.raises(NotImplementedError) as caught:
        hw.attention(x, x, x, probe=hw.Scores())
    assert str(caught.value) == (
        "attention: probe scores would write [1 1 8193 8193], more than 67108864 entries; "
        "ask for picked rows, or take fewer heads or tokens at a time"
    )


def test_memory_that_is_not_there_is_a_memory_error():
    many = 2**45
    q = np.broadcast_to(np.float32(0), (1, many, 1, 8))
    with pytest.raises(MemoryError):
        hw.attention(q, q[:, :1], q[:, :1])


TENSORS = {
    "grad": (
        lambda x: x.clone().requires_grad_(),
        NotImplementedError,
        "attention: q requires grad, which headwise.attention does not record; "
        "call headwise.torch.attention or pass q.detach()",
    ),
    "meta": (
        lambda x: x.to("meta"),
        ValueError,
        "attention: q is a tensor without plain memory (sparse, nested or on meta); give a dense CPU tensor",
    ),
    "sparse": (
        lambda x: x.to_sparse(),
        ValueError,
        "attention: q is a tensor without plain memory (sparse, nested or on meta); give a dense CPU tensor",
    ),
    "conjugate": (
        lambda x: torch.view_as_complex(torch.stack([x, x], -1)).conj().imag,
        ValueError,
        "attention: q is a lazily negated view; call .resolve_neg() on it first",
    ),
    "negated": (
        torch._neg_view,
        ValueError,
        "attention: q is a lazily negated view; call .resolve_neg() on it first",
    ),
    "negated, one column repeated": (
        lambda x: torch.view_as_complex(torch.stack([x, x], -1)).conj().imag[..., :1].expand(x.shape),
        ValueError,
        "attention: q is a lazily negated view; call .resolve_neg() on it first",
    ),
    "complex": (
        lambda x: x.to(torch.complex64),
        TypeError,
        "attention: q holds torch.complex64; give float32, bfloat16, float16 or float64",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_cannot_be_read_are_refused(case):
    change, exception, sentence = TENSORS[case]
    with pytest.raises(exception) as caught:
        hw.attention(change(torch.from_numpy(Q)), torch.from_numpy(K), torch.from_numpy(V))
    assert str(caught.value) == sentence


def test_a_tensor_that_requires_grad_is_taken_where_grads_are_off():
    q = torch.from_numpy(Q).requires_grad_()
    with torch.no_grad():
        out = hw.attention(q, torch.from_numpy(K), torch.from_numpy(V))
    assert not out.requires_grad
    q.requires_grad_(False)


MASKS = {
    "window": (lambda: hw.Mask.window(-1, 0), ValueError, "mask: window(-1, 0)"),
    "sliding": (lambda: hw.Mask.sliding(0), ValueError, "mask: sliding(0)"),
    "negative length": (lambda: hw.Mask.lengths([3, -1]), ValueError, "mask: lengths[1] is -1"),
    "overlapping documents": (
        lambda: hw.Mask.documents([0, 5, 3]),
        ValueError,
        "mask: documents overlap: offsets[2] is 3",
    ),
    "float": (lambda: hw.Mask.window(1.5, 0), TypeError, "mask: back is a float; give a 64-bit integer"),
    "float mask": (
        lambda: hw.Mask.dense(ones(5, 7)),
        TypeError,
        "Mask.dense: x is f32 [5 7]; give a bool array (a float mask is a bias: pass it as bias=)",
    ),
    "rank": (lambda: hw.Mask.dense(ones(7, dtype=bool)), ValueError, "mask: dense"),
    "parse": (lambda: hw.Mask.parse("causal & windw(3)"), ValueError, "mask: column 10"),
    "per_head in &": (
        lambda: hw.Mask.per_head([hw.Mask(), hw.Mask()]) & hw.Mask.causal(),
        ValueError,
        "mask: per_head of 2 masks cannot stand inside",
    ),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_refuse_in_words(case):
    make, exception, begin = MASKS[case]
    with pytest.raises(exception) as caught:
        make()
    assert str(caught.value).startswith(begin)


def test_threads_and_contexts_refuse_in_words():
    sentence = "; give a number from 1 to 1024, or None for all CPUs this process may use"
    with pytest.raises(ValueError) as caught:
        hw.set_threads(0)
    assert str(caught.value) == "set_threads: threads is 0" + sentence
    with pytest.raises(ValueError) as caught:
        hw.Context(threads=2000)
    assert str(caught.value) == "context: threads is 2000" + sentence
    with pytest.raises(TypeError) as caught:
        hw.Context(threads=1.5)
    assert str(caught.value) == "context: threads is a float; give a 64-bit integer"


def test_an_unknown_argument_is_a_type_error():
    with pytest.raises(TypeError):
        hw.attention(Q, K, V, window=3)
    with pytest.raises(TypeError):
        hw.attention(Q, K)
