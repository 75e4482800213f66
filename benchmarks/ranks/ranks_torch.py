#!/usr/bin/env python3
"""A block [8 512 512] over two ranks: headwise (ranks_block, under mpirun where it is) against torch's tensor parallel over gloo,
each rank one thread, in turns.

usage: ranks_torch.py PROGRAM [--repeats 7]
"""
import argparse
import os
import statistics
import subprocess
import sys
import time


def rank_work(rank, ranks, store, repeats, out):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)

    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (torch.nn.Linear(512, 512) for _ in range(4))

        def forward(self, x):
            q, k, v = (m(x).unflatten(-1, (-1, 64)).transpose(1, 2) for m in (self.q, self.k, self.v))
            return self.o(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2, self.attend = torch.nn.LayerNorm(512), torch.nn.LayerNorm(512), Attend()
            self.up, self.down = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))

    block = parallelize_module(Block(), mesh, {
        "attend.q": ColwiseParallel(), "attend.k": ColwiseParallel(), "attend.v": ColwiseParallel(), "attend.o": RowwiseParallel(),
        "up": ColwiseParallel(), "down": RowwiseParallel()})
    x, dy = torch.randn(2, 8, 512, 512)

    def forward():
        with torch.no_grad():
            block(x)

    def step():
        y = block(x)
        y.backward(dy)
        for p in block.parameters():
            p.grad = None

    for name, work in (("forward", forward), ("step", step)):
        times = []
        for i in range(repeats + 2):
            dist.barrier()
            begin = time.perf_counter()
            work()
            dist.barrier()
            if i > 1:
                times.append(1e3 * (time.perf_counter() - begin))
        if rank == 0:
            out.append((name, statistics.median(times), min(times), max(times)))
    if rank == 0:
        for name, mid, low, high in out:
            print(f"torch gloo, 2 ranks, {name}: {mid:.2f} ms ({low:.2f} to {high:.2f})", flush=True)
    dist.destroy_process_group()


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("program")
    words.add_argument("--repeats", type=int, default=7)
    a = words.parse_args()
    import multiprocessing
    import shutil
    import tempfile

    mpirun = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none"] if shutil.which("mpirun") else []
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):  # in turns
        subprocess.run([*mpirun, a.program, str(a.repeats)], env=env, check=True)
        sys.stdout.flush()
        with tempfile.TemporaryDirectory() as folder:
            ranks = [spawn.Process(target=rank_work, args=(r, 2, folder + "/store", a.repeats, [])) for r in (0, 1)]
            for p in ranks:
                p.start()
            for p in ranks:
                p.join()


if __name__ == "__main__":
    main()
