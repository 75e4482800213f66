"""headwise through its C interface on torch's CUDA tensors: what tests and benchmarks on a GPU share.

The library is taken from HEADWISE_BUILD (default: build/gpu); rivals of torch run in the same process."""
import ctypes
import math
import os
import pathlib

import torch

BUILD = pathlib.Path(os.environ.get("HEADWISE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build/gpu"))
lib = ctypes.CDLL(str(BUILD / "libheadwise.so"))
lib.hw_last_error.restype = ctypes.c_char_p
P, I32, I64, U32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", P), ("device_type", I32), ("device_id", I32), ("ndim", I32), ("dtype", DType),
                ("shape", ctypes.POINTER(I64)), ("strides", ctypes.POINTER(I64)), ("byte_offset", ctypes.c_uint64)]


class Args(ctypes.Structure):
    _fields_ = [("struct_size", U32), ("q", P), ("k", P), ("v", P), ("out", P), ("lse", P), ("mask", P), ("q_start", P),
                ("q_offsets", P), ("kv_offsets", P), ("scale", P), ("softcap", ctypes.c_double), ("slopes", P),
                ("bias", P), ("relative", P), ("relative_max_distance", I64), ("relative_bidirectional", I32),
                ("sinks", P), ("gate", P), ("dropout", ctypes.c_double), ("seed", ctypes.c_uint64),
                ("sequence_ids", P), ("probe", P), ("k_scale", P), ("v_scale", P), ("packed", P), ("stream", P), ("alpha", P),
                ("row_offsets", P), ("row_index", P), ("mix_before", P), ("mix_after", P), ("mix_q", P), ("mix_k", P), ("page_table", P), ("page_lengths", P)]


GRADIENTS = ("dq", "dk", "dv", "dbias", "dslopes", "drelative", "dsinks", "dscale", "dgate", "dalpha", "dmix_before",
             "dmix_after", "dmix_q", "dmix_k")


class BackwardArgs(ctypes.Structure):
    _fields_ = [("struct_size", U32), ("forward", P), ("dout", P)] + [(n, P) for n in GRADIENTS]


ROW_PROBES = ("entropy", "top_weight", "second_moment", "mean_distance", "sink_mass", "top_position")


class Probe(ctypes.Structure):
    _fields_ = [("struct_size", U32)] + [(n, P) for n in ROW_PROBES + ("top_keys", "top_weights", "class_of", "class_mass", "column_sums",
                                                                       "picks", "picked_weights", "scores")]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", U32), ("threads", I32), ("kernels", ctypes.c_char_p)]


CODES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.float64: (2, 64),
         torch.int64: (0, 64), torch.int32: (0, 32), torch.int8: (0, 8), torch.float8_e4m3fn: (10, 8), torch.uint8: (1, 8), torch.bool: (6, 8)}


class Failed(RuntimeError):
    pass


def call(status):
    if status:
        raise Failed(lib.hw_last_error().decode())


def text(function, *arguments):
    buffer, length = ctypes.create_string_buffer(1 << 16), ctypes.c_size_t()
    call(function(*arguments, buffer, ctypes.c_size_t(len(buffer)), ctypes.byref(length)))
    return buffer.value.decode()


def problem_room():
    """Room for a problem of any version of the library, which begins with its size."""
    room = ctypes.create_string_buffer(1024)
    ctypes.c_uint32.from_buffer(room).value = len(room)
    return room


def devices():
    return text(lib.hw_cuda_devices)


def tensor_of(t):
    """A torch tensor as hw_tensor; keep the result alive while it is used."""
    s = Tensor(t.data_ptr(), 2 if t.is_cuda else 1, t.device.index or 0, t.dim(), DType(*CODES[t.dtype], 1),
               (I64 * t.dim())(*t.shape), (I64 * t.dim())(*t.stride()), 0)
    return s


class Mask:
    def __init__(self, expression):
        self.handle = P()
        call(lib.hw_mask_parse(expression.encode(), ctypes.byref(self.handle)))

    def __del__(self):
        lib.hw_mask_destroy(self.handle)


class Attention:
    """One context; `kernels` as in HEADWISE_KERNELS, empty: all."""

    def __init__(self, kernels=""):
        self.context = P()
        options = Options(ctypes.sizeof(Options), 1, kernels.encode() or None)
        call(lib.hw_context_create(ctypes.byref(options), ctypes.byref(self.context)))

    def __del__(self):
        lib.hw_context_destroy(self.context)

    def args(self, q, k, v, out, lse=None, mask=None, softcap=0.0, dropout=0.0, seed=0, max_distance=0, bidirectional=0, probe=None, **tensors):
        """mask: a text, or a Mask. tensors: scale, q_start, q_offsets, kv_offsets, slopes, bias, relative, sinks, gate,
        page_table, page_lengths, k_scale, v_scale.
        probe: tensors by name, ROW_PROBES, top_keys, top_weights, column_sums."""
        a = Args(struct_size=ctypes.sizeof(Args), softcap=softcap, dropout=dropout, seed=seed, relative_max_distance=max_distance,
                 relative_bidirectional=bidirectional)
        a.keep = [mask if mask is None or isinstance(mask, Mask) else Mask(mask)]
        if a.keep[0] is not None:
            a.mask = a.keep[0].handle
        for name, t in dict(tensors, q=q, k=k, v=v, out=out, lse=lse).items():
            if t is not None:
                a.keep.append(tensor_of(t))
                setattr(a, name, ctypes.cast(ctypes.pointer(a.keep[-1]), P))
        if probe is not None:
            a.keep.append(Probe(ctypes.sizeof(Probe)))
            where = a.keep[-1]
            a.probe = ctypes.cast(ctypes.pointer(where), P)
            for name, t in probe.items():
                a.keep.append(tensor_of(t))
                setattr(where, name, ctypes.cast(ctypes.pointer(a.keep[-1]), P))
        if q.is_cuda:
            a.stream = torch.cuda.current_stream(q.device).cuda_stream
        return a

    def run(self, a):
        call(lib.hw_attention(self.context, ctypes.byref(a)))

    def __call__(self, q, k, v, out=None, lse=None, **more):
        out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device) if out is None else out
        self.run(self.args(q, k, v, out, lse, **more))
        return out

    def backward_args(self, q, k, v, out, lse, dout, gradients, **more):
        """gradients: tensors by name, GRADIENTS; more: as args."""
        a = BackwardArgs(ctypes.sizeof(BackwardArgs))
        forward = self.args(q, k, v, out, lse, **more)
        a.keep = [forward]
        a.forward = ctypes.cast(ctypes.pointer(forward), P)
        for name, t in dict(gradients, dout=dout).items():
            a.keep.append(tensor_of(t))
            setattr(a, name, ctypes.cast(ctypes.pointer(a.keep[-1]), P))
        return a

    def run_backward(self, a):
        call(lib.hw_attention_backward(self.context, ctypes.byref(a)))

    def backward(self, q, k, v, out, lse, dout, gradients=None, **more):
        """dq, dk, dv, or what `gradients` names."""
        found = gradients or {n: torch.empty(*t.shape, dtype=t.dtype, device=t.device) for n, t in (("dq", q), ("dk", k), ("dv", v))}
        self.run_backward(self.backward_args(q, k, v, out, lse, dout, found, **more))
        return tuple(found.values())

    def backward_choice(self, *tensors, **more):
        """One line "kernel: why it refused" or "kernel: chosen, numerics" for each kernel up to the chosen one."""
        forward, problem = problem_room(), problem_room()
        ctypes.c_uint64.from_buffer(problem, 8).value = ctypes.addressof(forward)
        return self.planned("backward", self.backward_args(*tensors, **more), problem)

    def choice(self, q, k, v, out, **more):
        return self.planned("attention", self.args(q, k, v, out, **more), problem_room())

    def planned(self, op, args, problem):
        def entry(name):
            return getattr(lib, f"hw_{op}_{name}")

        plan, name = P(), ctypes.c_char_p()
        call(entry("problem_of")(ctypes.byref(args), problem))
        try:
            call(entry("plan_create")(self.context, problem, ctypes.byref(plan)))
        except Failed as fault:  # the sentence holds the lines
            return str(fault)
        try:
            call(entry("plan_kernel")(plan, ctypes.byref(name)))
            return text(entry("plan_refusals"), plan) + f"{name.value.decode()}: chosen, {text(entry('plan_numerics'), plan)}\n"
        finally:
            entry("plan_destroy")(plan)


def open_pairs(q_tokens, kv_tokens, q_start=0, back=None, ahead=None, length=None, device="cuda"):
    """The band as a matrix: keys q - back .. q + ahead below `length`."""
    q = torch.arange(q_tokens, device=device)[:, None] + q_start
    k = torch.arange(kv_tokens, device=device)[None, :]
    m = torch.ones(q_tokens, kv_tokens, dtype=torch.bool, device=device)
    if back is not None:
        m &= k >= q - back
    if ahead is not None:
        m &= k <= q + ahead
    if length is not None:
        m &= k < length
    return m


def formula(q, k, v, mask=None, scale=None, softcap=0.0, slopes=None, sinks=None, bias=None, q_start=0, dtype=torch.float64):
    """softmax(cap(scale q k^T) + bias - slope |q - k|, with sinks) v in `dtype`, step by step; [batch tokens heads dim].
    Returns out and lse [batch heads q]."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.to(dtype)
    if slopes is not None:
        d = (torch.arange(q.shape[2], device=q.device)[:, None] + q_start - torch.arange(k.shape[2], device=q.device)[None]).abs()
        s = s - slopes.to(dtype)[None, :, None, None] * d.to(dtype)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
        v = torch.where((mask.any(-2) if mask.dim() == 2 else mask.any(-2).any(1, keepdim=True))[..., None], v, 0) \
            if not torch.isfinite(v).all() else v
    if sinks is not None:
        s = torch.cat([s, sinks.to(dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    lse = torch.logsumexp(s, -1)
    w = torch.softmax(s, -1).nan_to_num(0)
    if sinks is not None:
        w = w[..., :-1]
    return (w @ v).transpose(1, 2), lse


def gradient_formula(q, k, v, dout, mask=None, scale=None, softcap=0.0, slopes=None, sinks=None, bias=None, gate=None, q_start=0,
                     dtype=torch.float64):
    """The gradients of formula(...), times a gate, by their own formulas in `dtype`: dq, dk, dv, and by name dbias, dsinks, dgate."""
    b, tq, h, d = q.shape
    kv = k.shape[2]
    q, k, v, dout = (x.to(dtype).transpose(1, 2) for x in (q, k, v, dout))
    k, v = k.repeat_interleave(h // kv, 1), v.repeat_interleave(h // v.shape[1], 1)
    scale = 1 / math.sqrt(d) if scale is None else scale
    s = (q @ k.transpose(-1, -2)) * scale
    slant = 1.0
    if softcap:
        slant = 1 - torch.tanh(s / softcap) ** 2
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.to(dtype)
    if slopes is not None:
        far = (torch.arange(tq, device=q.device)[:, None] + q_start - torch.arange(k.shape[2], device=q.device)[None]).abs()
        s = s - slopes.to(dtype)[None, :, None, None] * far.to(dtype)
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.to(dtype)[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    w = torch.softmax(s, -1).nan_to_num(0)
    sink = w[..., -1:]
    w = w[..., :k.shape[2]]
    gates = 1.0 if gate is None else gate.to(dtype).transpose(1, 2)[..., None]
    dp = dout @ v.transpose(-1, -2)
    value = (w * dp).sum(-1, keepdim=True)
    ds = w * gates * (dp - value)
    inner = ds * slant * scale
    shared = lambda x, n: x.view(b, n, h // n, *x.shape[2:]).sum(2).transpose(1, 2)
    more = {"dbias": ds, "dsinks": -(sink * gates * value).sum((0, 2, 3)), "dgate": value[..., 0].transpose(1, 2)}
    return (inner @ k).transpose(1, 2), shared(inner.transpose(-1, -2) @ q, kv), shared((w * gates).transpose(-1, -2) @ dout, kv), more


UNIT = {torch.bfloat16: 2.0 ** -9, torch.float16: 2.0 ** -12, torch.float32: 2.0 ** -25, torch.float64: 2.0 ** -53}
GUARD = {torch.bfloat16: 2.5e-3, torch.float16: 3.2e-4, torch.float32: 1e-6, torch.float64: 1e-14}


def relative(a, b):
    n = b.norm().item()
    return (a - b).norm().item() / n if n else (a - b).norm().item()
