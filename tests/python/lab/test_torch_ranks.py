"""Attention modules cut over two processes of gloo by hw.torch.head_plan, against one process."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package here", allow_module_level=True)

WORKER = '''
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
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

rank, path = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
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
for words, part in [(dict(heads=3), "3 heads cannot be cut over 2 ranks"), (dict(head="talking"), "cut the data instead")]:
    try:
        hw.head_plan(whole, mesh, **words)
    except (ValueError, NotImplementedError) as error:
        assert part in str(error), error
    else:
        raise AssertionError(words)
dist.destroy_process_group()
print("done", rank)
'''


def test_two_processes_give_what_one_gives(tmp_path):
    room = str(pathlib.Path(__import__("headwise").__file__).parents[1])
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([room, os.environ.get("PYTHONPATH", "")]), GLOO_SOCKET_IFNAME="lo",
               HEADWISE_THREADS="1")
    jobs = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path / "meet")], env=env, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in (0, 1)]
    said = [job.communicate(timeout=300) for job in jobs]
    for rank, (job, (out, error)) in enumerate(zip(jobs, said)):
        assert job.returncode == 0 and f"done {rank}" in out, error[-3000:]
