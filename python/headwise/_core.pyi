"""headwise in C++: attention, masks, contexts."""

from collections.abc import Sequence
from typing import overload


from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, overload

from ._heads import Head
from ._types import AttentionGradients, AttentionResult, Pages, Probe, Scores, T5

__version__: str

Array: TypeAlias = Any
ArrayT = TypeVar("ArrayT")

class Context:
    """
    Threads, workspace, plans and kernel preference of one caller. Calls on one Context take turns.
    """

    def __init__(self, threads: int | None = None, kernels: str | Sequence[str] | None = None, device: object = None) -> None: ...

    @property
    def threads(self) -> int:
        """Threads of a call, the caller included."""

    @property
    def kernels(self) -> str:
        """Allowed kernels, best first; empty: all."""

    @property
    def device(self) -> str | None:
        """
        Where every tensor must lie, as in "cuda:0"; None: each call runs where its tensors lie.
        """

    def __repr__(self) -> str: ...

def set_threads(threads: int | None) -> None:
    """
    Threads of calls without a Context, in every Python thread, from the next call on. None: HEADWISE_THREADS, else the
    CPUs this process may use.
    """

def get_threads() -> int:
    """Threads of a call without a Context from this Python thread."""

def cuda_devices() -> str:
    """The CUDA devices in one line, or "none: ..." with what is missing."""

def measure_peak(threads: int, windows: int = 20, window_ms: float = 50.0) -> float:
    """
    GFLOP/s of f32 multiply-adds that never leave the registers: the best of several windows. For benchmarks.
    """

def measure_read(threads: int) -> float:
    """GB/s of reading memory once, all threads together. For benchmarks."""

class Mask:
    """Which pairs of query and key may attend: a value, joined with & and |."""

    @overload
    def __init__(self) -> None:
        """Everything may attend."""

    @overload
    def __init__(self, text: str) -> None:
        """The same as Mask.parse(text); a compiled graph may hold this call."""

    @staticmethod
    def all() -> Mask:
        """Everything may attend."""

    @staticmethod
    def causal() -> Mask:
        """Keys at or before the query's position."""

    @staticmethod
    def window(back: int, ahead: int) -> Mask:
        """Keys from q - back to q + ahead."""

    @staticmethod
    def sliding(width: int) -> Mask:
        """The last `width` keys, the query's own included."""

    @staticmethod
    def prefix(keys: int) -> Mask:
        """The first `keys` keys, for every query."""

    @staticmethod
    def lengths(lengths: Sequence[int] | Array) -> Mask:
        """Sequence b may look at keys 0..lengths[b]-1."""

    @staticmethod
    def documents(offsets: Sequence[int] | Array) -> Mask:
        """
        Tokens offsets[i]..offsets[i+1]-1 form document i; a query sees its own document.
        """

    @staticmethod
    def blocks(q_block: int, kv_block: int, rows: Sequence[int] | Array, columns: Sequence[int] | Array) -> Mask:
        """
        Query block r may look at the kv blocks columns[rows[r]:rows[r + 1]] (CSR, ascending inside a row).
        """

    @staticmethod
    def strided(stride: int, width: int = 1) -> Mask:
        """Keys with |q - k| % stride < width."""

    @staticmethod
    def global_tokens(positions: Sequence[int] | Array) -> Mask:
        """
        Pairs in which the query or the key is one of `positions` (`global` is a word of Python).
        """

    @staticmethod
    def dense(x: Array, heads: int | None = None) -> Mask:
        """
        bool array, true = may attend: [q kv], [heads q kv] or [batch heads q kv] (1 repeats). Packed to bits: a copy.
        With heads: x is [batch*heads q kv].
        """

    @staticmethod
    def from_blocked(x: Array, heads: int | None = None) -> Mask:
        """The same with the other polarity: true = may not attend."""

    @staticmethod
    def per_head(masks: Sequence[Mask]) -> Mask:
        """One mask per head."""

    @staticmethod
    def parse(text: str) -> Mask:
        """"causal & window(256, 0) | prefix(4)"; the inverse of str(mask)."""

    def __and__(self, other: Mask, /) -> Mask: ...

    def __or__(self, other: Mask, /) -> Mask: ...

    def __eq__(self, other: object, /) -> bool:
        """The same expression, term by term."""

    def __hash__(self) -> int: ...

    def __getstate__(self) -> tuple[str, tuple[object, ...]]:
        """What pickle and copy keep: the text, and the bits of dense terms."""

    def __setstate__(self, state: tuple[str, tuple[object, ...]], /) -> None: ...

    def may_attend(self, q: int, k: int, sequence: int = 0, head: int = 0, q_start: int = 0) -> bool:
        """
        The definition: may the query at position q look at the key at position k?
        """

    @property
    def heads(self) -> int:
        """1, or the number of per-head masks."""

    def __str__(self) -> str: ...

    def __repr__(self) -> str: ...

class PackedKeys:
    """
    Keys as the kernels of this machine multiply them; given to attention as k. Made by pack_keys, grown by append_keys.
    """

    @property
    def buffer(self) -> Array:
        """[batch kv_heads room]: move or save it beside the numbers below."""

    @property
    def tokens(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def order(self) -> str:
        """How a head's keys lie, e.g. [kv/16][dim][16]."""

    @property
    def nbytes(self) -> int: ...

def pack_keys(k: Array, capacity: int | None = None, *, layout: str = 'bshd', ctx: Context | None = None) -> PackedKeys:
    """
    k [batch tokens kv_heads dim], f32, bf16, f16, int8 or e4m3, packed with room for `capacity` tokens a sequence (default: its own).
    """

def append_keys(packed: PackedKeys, k: Array, starts: Sequence[int] | Array | None = None, *, layout: str = 'bshd', ctx: Context | None = None) -> None:
    """
    Puts k [batch new_tokens kv_heads dim] behind packed.tokens, or at one start a sequence.
    """

def unpack_keys(packed: PackedKeys, tokens: int | None = None, *, layout: str = 'bshd', ctx: Context | None = None) -> Array:
    """The first tokens (default: all) as a plain array, bit for bit."""

def quantize_kv(x: ArrayT, *, dtype: str = 'int8', layout: str = 'bshd', ctx: Context | None = None) -> tuple[ArrayT, ArrayT]:
    """
    x [batch tokens kv_heads dim] as int8 or e4m3 and its scales [batch tokens kv_heads], max |x| / 127 (e4m3: 448) of each row; for attention's k, v, k_scale and v_scale.
    """

def head_fields() -> list[tuple[str, str, tuple[Any, ...]]]:
    """
    Every head: its name, where its heads meet, and its fields as (name, default, words, help).
    """

def head_info(head: Head | str, model_dim: int, layer: int = 0, depth: int = 1) -> dict[str, Any]:
    """
    A head in a layer: its settings filled in, where its heads meet, rows of its projections, the parameters it
    declares with their sizes, and what it attends with: heads of the normalizer, heads and columns of the output.
    """

@overload
def attention(
    q: ArrayT,
    k: ArrayT | PackedKeys,
    v: ArrayT,
    mask: Mask | Sequence[Mask] | None = None,
    *,
    scale: float | Array | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    alibi: bool | Array | None = None,
    relative: T5 | None = None,
    sinks: Array | None = None,
    gate: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    q_start: int | Sequence[int] | Array = 0,
    q_offsets: Sequence[int] | Array | None = None,
    kv_offsets: Sequence[int] | Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    layout: str = "bshd",
    out: ArrayT | None = None,
    return_lse: Literal[False] = False,
    probe: None = None,
    kernels: str | Sequence[str] | None = None,
    ctx: Context | None = None,
    head: Head | str | None = None,
    coefficients: dict[str, Array] | None = None,
    pages: Pages | None = None,
) -> ArrayT:
    """
    Multi-head attention of q [batch tokens heads dim] over k and v, heads shared by division.

    Returns out, or the named tuple (out, lse, probe) when lse or a probe is asked for. docs/python.md has every
    argument.
    """

@overload
def attention(
    q: ArrayT,
    k: ArrayT | PackedKeys,
    v: ArrayT,
    mask: Mask | Sequence[Mask] | None = None,
    *,
    scale: float | Array | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    alibi: bool | Array | None = None,
    relative: T5 | None = None,
    sinks: Array | None = None,
    gate: Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    q_start: int | Sequence[int] | Array = 0,
    q_offsets: Sequence[int] | Array | None = None,
    kv_offsets: Sequence[int] | Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    layout: str = "bshd",
    out: ArrayT | None = None,
    return_lse: bool = False,
    probe: Probe | Scores | None = None,
    kernels: str | Sequence[str] | None = None,
    ctx: Context | None = None,
    head: Head | str | None = None,
    coefficients: dict[str, Array] | None = None,
    pages: Pages | None = None,
) -> ArrayT | AttentionResult: ...

def explain(q: ArrayT, k: ArrayT | PackedKeys, v: ArrayT, mask: Mask | Sequence[Mask] | None = None, *, scale: float | Array | None = None, softcap: float | None = None, bias: Array | None = None, alibi: bool | Array | None = None, relative: T5 | None = None, sinks: Array | None = None, gate: Array | None = None, dropout: float = 0.0, seed: int = 0, q_start: int | Sequence[int] | Array = 0, q_offsets: Sequence[int] | Array | None = None, kv_offsets: Sequence[int] | Array | None = None, k_scale: Array | None = None, v_scale: Array | None = None, layout: str = 'bshd', out: ArrayT | None = None, return_lse: bool = False, probe: Probe | Scores | None = None, kernels: str | Sequence[str] | None = None, ctx: Context | None = None, head: Head | str | None = None, coefficients: dict[str, Array] | None = None, pages: Pages | None = None) -> str:
    """
    Which kernel this call would take and why, its cost against what this machine can do. Takes attention's arguments;
    runs nothing but a measurement of the machine, once per number of threads.
    """

def attention_backward(dout: ArrayT, q: ArrayT, k: ArrayT, v: ArrayT, out: ArrayT, lse: Array, mask: Mask | Sequence[Mask] | None = None, *, scale: float | Array | None = None, softcap: float | None = None, bias: Array | None = None, alibi: bool | Array | None = None, relative: T5 | None = None, sinks: Array | None = None, gate: Array | None = None, dropout: float = 0.0, seed: int = 0, q_start: int | Sequence[int] | Array = 0, q_offsets: Sequence[int] | Array | None = None, kv_offsets: Sequence[int] | Array | None = None, layout: str = 'bshd', wants: Sequence[str] | None = None, kernels: str | Sequence[str] | None = None, ctx: Context | None = None, head: Head | str | None = None, coefficients: dict[str, Array] | None = None) -> AttentionGradients:
    """
    Gradients of attention from the gradient of its output, given what it took and what it returned with
    return_lse=True. `wants` names the gradients to compute; None stands for every array given.
    """

class PackedWeight:
    """
    A weight [out in] in the layout of the kernel that reads it, packed once for many calls of hw.linear with x of the same dtype.
    """

    def __init__(self, weight: Array, *, ctx: Context | None = None) -> None: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

def linear(x: ArrayT, weight: Array | PackedWeight, bias: Array | None = None, *, activation: str | None = None, residual: Array | None = None, out: ArrayT | None = None, ctx: Context | None = None) -> ArrayT:
    """
    activation(x W^T + bias) + residual; weight [out in] or a PackedWeight.

    x [... in] or [... heads dim] with heads * dim = in gives [... out]; out may be [... heads dim] too. activation: relu, gelu, gelu_tanh, silu, sigmoid.
    """

class RopeScaling:
    """
    How rotary frequencies change for texts longer than the training length.
    """

    @staticmethod
    def linear(factor: float) -> RopeScaling: ...

    @staticmethod
    def ntk(factor: float) -> RopeScaling: ...

    @staticmethod
    def dynamic_ntk(factor: float, length: int, original_length: int) -> RopeScaling: ...

    @staticmethod
    def yarn(factor: float, original_length: int, *, beta_fast: float = 32.0, beta_slow: float = 1.0, attention_factor: float = 0.0, truncate: bool = True) -> RopeScaling: ...

    @staticmethod
    def llama3(factor: float, low_freq_factor: float, high_freq_factor: float, original_length: int) -> RopeScaling: ...

def rope(x: ArrayT, positions: int | Sequence[int] | Array = 0, *, base: float = 10000.0, interleaved: bool = False, rotary_dim: int | None = None, scaling: RopeScaling | None = None, inverse: bool = False, layout: str = 'bshd', out: ArrayT | None = None, ctx: Context | None = None) -> ArrayT:
    """
    Turns pairs of dimensions of x [batch tokens heads dim] or [tokens heads dim] by position times frequency.

    positions: the position of token 0, or one per token. out may be x itself.
    """

def rms_norm(x: ArrayT, weight: Array | None = None, *, eps: float = 1e-06, one_plus: bool = False, out: ArrayT | None = None, ctx: Context | None = None) -> ArrayT:
    """
    x / sqrt(mean(x^2) + eps) * weight along the last axis; weight [dim] or [heads dim]; one_plus: (1 + weight).
    """

def l2_norm(x: ArrayT, weight: Array | None = None, *, eps: float = 1e-06, out: ArrayT | None = None, ctx: Context | None = None) -> ArrayT:
    """
    x / max(|x|, eps) * weight along the last axis; weight as in rms_norm, sizes of 1 repeat.
    """

class Communicator:
    """One rank's way to the others of its team."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def engine(self) -> str:
        """mpi, threads or none."""

    @property
    def counted(self) -> dict[str, int]:
        """
        What this rank has sent since the start: bytes, messages, calls, card_bytes.
        """

    def part(self, first: int, count: int, step: int = 1) -> Communicator:
        """
        The team of the ranks first, first + step, ...; this rank is one of them. Nothing travels.
        """

    def gather(self, slice: ArrayT, axis: int = 0) -> ArrayT:
        """
        The slices of all ranks, joined along an axis. Rank r of R holds [n r // R, n (r + 1) // R).
        """

    def exchange(self, x: ArrayT, cut_axis: int) -> ArrayT:
        """
        Matrices: this rank's rows of all columns become its columns of all rows (cut_axis 1), or back (0).
        """

    def sum(self, partial: ArrayT, order: str = "tree", *, dtype: str | None = None, ctx: Context | None = None) -> ArrayT:
        """
        The sum over ranks, on every rank. tree: neighbours are added, then neighbouring sums. engine: the engine's own. dtype: of the sum; a tree of f32 may give f16 or bf16, which travel so.
        """

    def share(self, x: ArrayT) -> ArrayT:
        """What rank 0 gave, on every rank."""

    def agree(self, what: str, fields: dict[str, Any]) -> None:
        """
        Every rank gives the same fields, or every rank raises with the rank, the field and both values.
        """

class Teams:
    """
    Who works together: tensor ranks share heads and columns, context ranks the tokens, data ranks the texts of a step.
    """

    def __init__(self, tensor: Communicator | None = None, context: Communicator | None = None, data: Communicator | None = None, *, order: str = "one_rank") -> None:
        """
        order: one_rank (the bits of one process; forward alone over tensor ranks), tree (the same bits on 1, 2, 4, 8 ranks) or engine.
        """

    @property
    def order(self) -> str: ...

def start_ranks(engine: str, communicator: int, seconds: float, start_seconds: float, check: bool) -> Communicator:
    """See headwise.distributed.start."""

def run_ranks(ranks: int, work: Callable[[Communicator], object], seconds: float, check: bool) -> None:
    """See headwise.distributed.run."""

def end_ranks(wait: bool) -> None:
    """Before the program goes: leaves every team."""

class Layer:
    """What every layer has: parameters and their gradients by name."""

    def parameters(self) -> dict[str, Array]:
        """Name to NumPy array: the parameters themselves, writable in place."""

    def gradients(self) -> dict[str, Array]:
        """Name to NumPy array: what backward adds to."""

    def zero_gradients(self) -> None:
        """Sets every gradient to 0."""

    @property
    def loss(self) -> float:
        """
        What the heads of the last call add to the loss: moh's balance times the head's weight, the mean over layers; 0.0 where no head has one. backward counts it.
        """

    def save(self, path: str) -> None:
        """
        Writes the parameters by name as one safetensors file, whole or not at all.
        """

    def load(self, path: str) -> None:
        """Reads such a file: the same names, sizes and dtype."""

    def take_slices(self, whole: Layer) -> None:
        """
        Copies this rank's slices of the parameters of `whole`, the same layer made without teams.
        """

    def join_slices(self, whole: Layer, *, gradients: bool = False) -> None:
        """
        The way back, on every rank: `whole` gets the slices of all tensor ranks, values or gradients.
        """

    def torch_state(self) -> dict[str, Array]:
        """
        A copy of the parameters under the names of torch's module of the same kind.
        """

    def load_torch_state(self, state: dict[str, Array]) -> None:
        """Reads the state_dict of torch's module of the same kind."""

class MultiHead(Layer):
    """
    Projections to queries, keys and values, any head's attention between them, and W_O.
    """

    def __init__(self, heads: Head | str, model_dim: int, *, key_model_dim: int = 0, value_model_dim: int = 0, bias: bool = True, dropout: float = 0.0, rope: bool = False, alibi: bool = False, dtype: str = "f32", seed: int = 0, teams: Teams | None = None) -> None:
        """
        heads: "gqa:heads=8,kv_heads=2,dim=64", or headwise.Gqa(heads=8, kv_heads=2, dim=64).
        """

    def __call__(self, x: ArrayT, keys: ArrayT | None = None, values: ArrayT | None = None, mask: Mask | None = None, *, bias: Array | None = None, weights: bool = False, offsets: Sequence[int] | None = None, kv_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT | tuple[ArrayT, ArrayT]:
        """
        x [batch tokens model_dim], or [tokens model_dim] with offsets; keys and values default to x. weights: also returns them, [batch heads q kv].
        """

    def forward(self, x: ArrayT, keys: ArrayT | None = None, values: ArrayT | None = None, mask: Mask | None = None, *, bias: Array | None = None, weights: bool = False, offsets: Sequence[int] | None = None, kv_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT | tuple[ArrayT, ArrayT]:
        """The same, and backward may follow."""

    def backward(self, dy: ArrayT, *, loss_weight: float = 1.0, ctx: Context | None = None) -> ArrayT | tuple[ArrayT, ...]:
        """
        The gradient of x, or (dx, dkeys), or (dx, dkeys, dvalues), as forward was given them. loss_weight: that of `loss` in the total loss.
        """

class Block(Layer):
    """
    One layer of an encoder or decoder: attention, cross-attention, feed-forward.
    """

    def __init__(self, heads: Head | str, model_dim: int, feed_dim: int, *, cross: str = "none", feed: str = "relu", norm: str = "layer", norm_first: bool = True, bias: bool = True, dropout: float = 0.0, attention_dropout: float = 0.0, eps: float = 1e-5, positions: str = "none", dtype: str = "f32", seed: int = 0, teams: Teams | None = None) -> None:
        """
        cross: none, attention or merged. feed: relu, gelu, gelu_tanh or swiglu. norm: layer or rms. positions: none, rope or alibi.
        """

    def __call__(self, x: ArrayT, source: ArrayT | None = None, mask: Mask | None = None, source_mask: Mask | None = None, *, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT:
        """
        x [batch tokens model_dim], or [tokens model_dim] with offsets; nothing is kept for a backward.
        """

    def forward(self, x: ArrayT, source: ArrayT | None = None, mask: Mask | None = None, source_mask: Mask | None = None, *, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT:
        """
        The same, and backward may follow. training turns dropout on, drawn from seed and step.
        """

    def backward(self, dy: ArrayT, *, loss_weight: float = 1.0, ctx: Context | None = None) -> ArrayT | tuple[ArrayT, ArrayT]:
        """
        The gradient of x, with a source (dx, dsource); gradients of parameters are added to gradients(). loss_weight: that of `loss` in the total loss.
        """

class Stack(Layer):
    """Blocks after each other, and a norm at the end."""

    def __init__(self, heads: Head | str, model_dim: int, feed_dim: int, depth: int, *, share_layers: int = 1, final_norm: bool = True, ds_init: float = 0.0, cross: str = "none", feed: str = "relu", norm: str = "layer", norm_first: bool = True, bias: bool = True, dropout: float = 0.0, attention_dropout: float = 0.0, eps: float = 1e-5, positions: str = "none", dtype: str = "f32", seed: int = 0, teams: Teams | None = None) -> None:
        """depth blocks; share_layers consecutive ones use one set of weights."""

    def __call__(self, x: ArrayT, source: ArrayT | None = None, mask: Mask | None = None, source_mask: Mask | None = None, *, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT:
        """
        x [batch tokens model_dim], or [tokens model_dim] with offsets; nothing is kept for a backward.
        """

    def forward(self, x: ArrayT, source: ArrayT | None = None, mask: Mask | None = None, source_mask: Mask | None = None, *, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT:
        """
        The same, and backward may follow. training turns dropout on, drawn from seed and step.
        """

    def backward(self, dy: ArrayT, *, loss_weight: float = 1.0, ctx: Context | None = None) -> ArrayT | tuple[ArrayT, ArrayT]:
        """
        The gradient of x, with a source (dx, dsource); gradients of parameters are added to gradients(). loss_weight: that of `loss` in the total loss.
        """

def suggest_heads(model_dim: int) -> tuple[int, int, int, str]:
    """heads, head_dim, kv_heads, and why, for a model of this width."""

class Transformer(Layer):
    """An encoder, a decoder or both over any head, from one config."""

    def __init__(self, kind: str, vocabulary: int, *, source_vocabulary: int = 0, model_dim: int = 512, feed_dim: int = 2048, depth: int = 6, source_depth: int = 0, heads: Head | str = "mha:heads=8,dim=64", positions: str = "learned", max_tokens: int = 512, feed: str = "gelu", norm: str = "layer", norm_first: bool = True, bias: bool = True, dropout: float = 0.0, attention_dropout: float = 0.0, share_layers: int = 1, ds_init: float = 0.0, merged_attention: bool = False, tied: bool = True, outputs: int = 0, dtype: str = "f32", seed: int = 0) -> None:
        """
        kind: encoder, decoder or encoder_decoder. positions: none, learned, sinusoidal, rope or alibi.
        """

    def __call__(self, ids: ArrayT, source_ids: ArrayT | None = None, *, mask: Mask | None = None, source_mask: Mask | None = None, cross_mask: Mask | None = None, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT:
        """
        Logits [batch tokens vocabulary] of a decoder, rows or outputs of an encoder; nothing is kept.
        """

    def forward(self, ids: ArrayT, source_ids: ArrayT | None = None, *, mask: Mask | None = None, source_mask: Mask | None = None, cross_mask: Mask | None = None, offsets: Sequence[int] | None = None, source_offsets: Sequence[int] | None = None, training: bool = False, seed: int = 0, step: int = 0, ctx: Context | None = None) -> ArrayT:
        """The same, and backward may follow."""

    def backward(self, dy: Array, *, loss_weight: float = 1.0, ctx: Context | None = None) -> None:
        """
        From the gradient of what forward gave; gradients of parameters are added to gradients(). loss_weight: that of `loss` in the total loss.
        """

    def save_decoder(self, folder: str, *, tokenizer: str = "", ends: Sequence[int] = ()) -> None:
        """
        A folder that hw.Decoder and transformers read: a gpt2 or a llama. tokenizer: the text of tokenizer.json; ends: ids that end a text.
        """

def cross_entropy(logits: ArrayT, labels: Array, *, label_smoothing: float = 0.0, ignore: int = -100, gradient: bool = False, ctx: Context | None = None) -> float | tuple[float, ArrayT]:
    """
    The mean over rows whose label is not `ignore`; with gradient=True also its gradient by the logits.
    """

def binary_cross_entropy(logits: ArrayT, labels: Array, *, gradient: bool = False, ctx: Context | None = None) -> float | tuple[float, ArrayT]:
    """
    The mean over all elements, labels from 0 to 1; with gradient=True also its gradient by the logits.
    """

class TextEncoder:
    """A pretrained BERT-style encoder with its tokenizer: texts to vectors."""

    def __init__(self, folder: str, *, max_tokens: int = 0, normalized: bool = True, device: str = 'cpu') -> None:
        """
        folder: config.json, model.safetensors and vocab.txt, as sentence-transformers lays them out.
        device: cpu, cuda, cuda:1 or auto, where the encoder runs.
        """

    def embed(self, texts: Sequence[str], *, ctx: Context | None = None) -> Array:
        """
        A NumPy array [texts model_dim], float32; a row depends on its text alone.
        """

    def tokens(self, text: str) -> list[int]:
        """The ids a text is read as, with [CLS] and [SEP]."""

    @property
    def device(self) -> str: ...

    @property
    def model_dim(self) -> int: ...

    @property
    def max_tokens(self) -> int: ...

class DecoderMemory:
    """An encoder's states, as a decoder's cross heads look at them."""

    @property
    def states(self) -> int:
        """How many there are."""

class DecoderCore:
    """What hw.Decoder is made of."""

    def __init__(self, path: str, dtype: str, rows: str, kv_dtype: str, kv_mib: int, ctx: Context | None) -> None: ...

    def add(self, prompt: Sequence[int], options: dict[str, Any]) -> int:
        """The number of a new request."""

    def next(self, requests: Sequence[int], ctx: Context | None) -> list[tuple[Any, ...]]:
        """What came of these requests; one step is computed when nothing waits."""

    def drop(self, requests: Sequence[int]) -> None:
        """Ends requests that nobody waits for."""

    def tokenize(self, text: str, *, specials: bool = True, begin: bool = True) -> list[int]:
        """
        The ids of a text; special tokens spelt out in it become themselves, the first token stands first.
        """

    def token_bytes(self, ids: Sequence[int]) -> bytes:
        """The exact bytes of a text that begins with these tokens."""

    def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The ids of a conversation of (role, content)."""

    @property
    def begin_token(self) -> int: ...

    @property
    def end_tokens(self) -> list[int]: ...

    def logits(self, ids: Sequence[int], memory: DecoderMemory | None, ctx: Context | None) -> Array:
        """[tokens vocabulary], float32."""

    def watch(self, ids: Sequence[int], memory: DecoderMemory | None, ctx: Context | None) -> tuple[Array, ...]:
        """
        Entropy, top weight and weight on the first token: [tokens layers heads] each; of models with cross-attention the weights on every state, [tokens layers heads states].
        """

    def remember(self, states: Array, ctx: Context | None) -> DecoderMemory:
        """
        An encoder's states [states model_dim] as the cross heads look at them.
        """

    @property
    def config(self) -> dict[str, Any]: ...

class LongMap:
    """
    Attention of any length, from queries and keys in a file: weights are computed when asked for.
    """

    def __init__(self, path: str, mask: str = 'all', scale: float = 0.0, threads: int = 0) -> None:
        """
        A .atnv file, or q and k in a .npz or .safetensors file with their mask and scale.
        """

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Layers, heads, queries, keys."""

    def weights(self, layer: int, head: int, rows: tuple[int, int], keys: tuple[int, int]) -> Any:
        """Exact weights of queries [begin, end) over keys [begin, end)."""

    def by_distance(self, layer: int, head: int) -> Any:
        """Mean weight by distance back, 0 and up; walks over the whole map once."""

    def column_sums(self, layer: int, head: int) -> Any:
        """What each key receives of all queries."""

def write_atnv(path: str, q: Sequence[Array], k: Sequence[Array], lse: Sequence[Array], terms: tuple[Any, ...], /) -> None:
    """Queries and keys of one text as a .atnv file."""

class ViewPart:
    """One attention of a page that hw.view makes."""

    def __init__(self, name: str, query_tokens: Sequence[str], key_tokens: Sequence[str], weights: Sequence[Array], norms: Sequence[Array]) -> None: ...

    def words(self, queries: Sequence[int], keys: Sequence[int]) -> None:
        """Numbers of the words that the tokens are pieces of."""

    def special(self, queries: Sequence[int], keys: Sequence[int]) -> None:
        """Places of [CLS], [SEP] and the like."""

    def vectors(self, q: Sequence[Array], k: Sequence[Array]) -> None:
        """
        Queries and keys, [heads tokens head_dim] a layer, for the view of neurons.
        """

class ModelText:
    """What a model is asked to look at."""

    def __init__(self, text: str, pair: str, generate: int, temperature: float, seed: int, circuit: str) -> None: ...

def view_page(parts: list[ViewPart], name: str, language: str) -> tuple[str, float, list[str]]:
    """The page, the mass it leaves out, and what it warns of."""

def view_model_page(path: str, other: str, what: ModelText, language: str) -> tuple[str, float, list[str]]:
    """
    The same for a model and a text, beside another model where one is named.
    """

def align_pairs(path: str, back: str, pairs: Sequence[tuple[str, str]], rules: tuple[str, str, bool], heads: Sequence[str], back_heads: Sequence[str], threads: int) -> tuple[list[tuple[int, int]], list[tuple[list[str], list[str], Any, Any, list[tuple[int, int]]]]]:
    """
    Heads; then source words, target words, weights, those of the way back and links of each pair.
    """

def word_links(weights: Array, merge: str, shares: bool, back: Array | None) -> list[tuple[int, int]]:
    """
    Links of weights [target words, source words] and, of the way back, [source words, target words].
    """

def lab_survey(arg0: str, arg1: Sequence[str], arg2: Sequence[int], arg3: str, arg4: str, /) -> str: ...

def lab_survey_arrays(arg0: Sequence[bytes], arg1: Sequence[bytes], arg2: Sequence[int], arg3: Sequence[Sequence[int]], arg4: Sequence[Sequence[int]], arg5: Sequence[int], /) -> str: ...

def lab_cut(arg0: str, arg1: str, arg2: str, arg3: Sequence[str], arg4: Sequence[Sequence[str]], arg5: int, arg6: str, /) -> str: ...

def lab_convert(arg0: str, arg1: str, arg2: int, arg3: str, arg4: Sequence[str], /) -> tuple[list[tuple[float, float]], float, float, float]: ...

def lab_share(arg0: str, arg1: str, arg2: int, arg3: int, arg4: Sequence[str], /) -> tuple[list[float], float, float, float]: ...

def lab_answers(arg0: str, arg1: Sequence[str], arg2: Sequence[tuple[str, int, int, str, float, int, Sequence[float]]], arg3: Sequence[tuple[int, int, int, int, str]], arg4: Sequence[str], arg5: Sequence[Sequence[float]], /) -> list[list[float]]: ...

def lab_head_rows(arg0: str, arg1: Sequence[str], arg2: int, arg3: int, arg4: str, arg5: Sequence[str], arg6: Sequence[Sequence[float]], /) -> list[float]: ...

def lab_rollout(arg0: str, arg1: str, /) -> list[list[float]]: ...

def lab_flow(arg0: str, arg1: str, arg2: int, /) -> list[float]: ...

def recognizer_train(arg0: tuple[Sequence[str], Sequence[str], Sequence[Sequence[str]]], arg1: tuple[Sequence[str], Sequence[str], Sequence[Sequence[str]]], arg2: str, arg3: Sequence[tuple[str, str]], arg4: tuple[str, str, str], arg5: tuple[int, bool], /) -> str: ...

class RecognizerCore:
    def __init__(self, folder: str, threads: int, device: str) -> None: ...

    def predict(self, arg0: Sequence[str], arg1: int, arg2: bool, arg3: str, /) -> list[str]: ...

    def evaluate(self, arg0: tuple[Sequence[str], Sequence[str], Sequence[Sequence[str]]], arg1: tuple[str, str, str], arg2: str, /) -> str: ...

    def report(self, arg0: tuple[Sequence[str], Sequence[str], Sequence[Sequence[str]]], arg1: str, arg2: tuple[str, str, str], arg3: tuple[int, bool, str], /) -> None: ...

    @property
    def device(self) -> str: ...

    @property
    def labels(self) -> list[str]: ...

    @property
    def thresholds(self) -> tuple[bool, float, float]: ...
