"""Attention modules over processes of gloo, cut by hw.torch.head_plan or shared out by FSDP2, against one process."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package here", allow_module_level=True)

WORKER = '''
import os
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
import headwise.torch as hw

class Attend(nn.Module):
    def __init__(self, heads, kv_heads, dim):
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.dim = heads, kv_heads, dim
        self.q_proj = nn.Linear(24, heads * dim)
        self.k_proj = nn.Linear(24, kv_heads * dim)
        self.v_proj = nn.Linear(24, kv_heads * dim)
        self.o_proj = nn.Linear(heads * dim, 24, bias=False)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, self.dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(hw.attention(q, k, v).flatten(-2))

ranks, path = int(sys.argv[1]), sys.argv[2]
rank = next((r for r in range(1, ranks) if os.fork() == 0), 0)  # torch is imported once
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
mesh = init_device_mesh("cpu", (ranks,))
for heads, kv_heads in [(4, 4), (4, 2), (4, 1)]:
    torch.manual_seed(7)
    whole = Attend(heads, kv_heads, 6)
    torch.manual_seed(7)
    cut = Attend(heads, kv_heads, 6)
    x = torch.randn(2, 5, 24, requires_grad=True)
    own = x.detach().clone().requires_grad_()
    dist.broadcast(x.data, 0), own.data.copy_(x.data)
    cut = parallelize_module(cut, mesh, hw.head_plan(cut, mesh))
    want, got = whole(x), cut(own)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    (want * want).sum().backward(), (got * got).sum().backward()
    torch.testing.assert_close(own.grad, x.grad, rtol=0, atol=1e-4)
    for (name, a), b in zip(cut.named_parameters(), whole.parameters()):
        grad = a.grad.full_tensor() if hasattr(a.grad, "full_tensor") else a.grad
        torch.testing.assert_close(grad, b.grad, rtol=0, atol=1e-4, msg=lambda m: f"{name} of {kv_heads} kv heads: {m}")
for words, part in [(dict(heads=3), f"3 heads cannot be cut over {ranks} ranks"), (dict(head="talking"), "cut the data instead")]:
    try:
        hw.head_plan(whole, mesh, **words)
    except (ValueError, NotImplementedError) as error:
        assert part in str(error), error
    else:
        raise AssertionError(words)
# DTensor: attention by batch, by heads, with one kv head for all, and whole where heads or terms cannot be cut.
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
def case(shapes, way, terms, stays):
    torch.manual_seed(3)
    whole = [torch.randn(s, requires_grad=True) for s in shapes]
    for x in whole:
        dist.broadcast(x.data, 0)
    parts = [distribute_tensor(x.detach(), mesh, [w]).requires_grad_() for x, w in zip(whole, way)]
    want = hw.attention(*whole, **terms)
    with CommDebugMode() as watch:
        got = hw.attention(*parts, **terms)
    assert isinstance(got, DTensor) and (got.placements == (way[0],)) == stays, (way, terms, got.placements)
    assert (watch.get_total_counts() == 0) == stays, (way, terms, watch.get_total_counts())
    torch.testing.assert_close(got.full_tensor(), want, rtol=0, atol=0)
    (want * want).sum().backward(), (got * got).sum().backward()
    for a, b in zip(parts, whole):
        torch.testing.assert_close(a.grad.full_tensor(), b.grad, rtol=0, atol=1e-5)
causal = dict(mask=hw.Mask.causal())
for kv_heads in (4, 1):
    shapes = [(4, 5, 4, 6), (4, 7, kv_heads, 6), (4, 7, kv_heads, 6)]
    case(shapes, [Shard(0)] * 3, causal, True)
    case(shapes, [Shard(2)] + [Shard(2) if kv_heads > 1 else Replicate()] * 2, causal, True)
turned = [(4, 4, 5, 6), (4, 4, 7, 6), (4, 4, 7, 6)]
case(turned, [Shard(1)] * 3, dict(layout="bhsd"), True)
case(turned, [Shard(1)] * 3, dict(layout="bhsd", alibi=True), False)
case([(4, 5, 3, 6)] * 3, [Shard(1)] * 3, causal, False)
same = [(4, 5, 4, 6)] * 3  # masks that count texts or heads are those of all of them
case(same, [Shard(0)] * 3, dict(mask=hw.Mask.lengths([1, 2, 3, 4])), False)
case(same, [Shard(0)] * 3, dict(mask=hw.Mask.lengths([4, 3, 2, 1]) & hw.Mask.causal()), False)
case(same, [Shard(0)] * 3, dict(mask=hw.Mask.causal() & hw.Mask.window(3, 0)), True)
# FSDP2: parameters are shared out, and each rank has rows of its own.
torch.manual_seed(7)
whole = Attend(4, 2, 6)
torch.manual_seed(7)
shared = fully_shard(Attend(4, 2, 6), mesh=mesh)
x = torch.randn(ranks, 5, 24)
dist.broadcast(x, 0)
want, got = whole(x), shared(x[rank:rank + 1])
torch.testing.assert_close(got, want[rank:rank + 1], rtol=0, atol=1e-6)
(want * want).sum().div(ranks).backward(), (got * got).sum().backward()
for (name, a), b in zip(shared.named_parameters(), whole.parameters()):
    torch.testing.assert_close(a.grad.full_tensor(), b.grad, rtol=0, atol=1e-4, msg=lambda m: f"{name}: {m}")
dist.destroy_process_group()
if rank > 0:
    sys.stdout.flush()
    os._exit(0)
for _ in range(1, ranks):
    assert os.wait()[1] == 0
print("done")
'''


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_give_what_one_gives(tmp_path, ranks):
    room = str(pathlib.Path(__import__("headwise").__file__).parents[1])
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([room, os.environ.get("PYTHONPATH", "")]), GLOO_SOCKET_IFNAME="lo",
               HEADWISE_THREADS="1")
    done = subprocess.run([sys.executable, "-c", WORKER, str(ranks), str(tmp_path / "meet")], env=env, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-3000:]
