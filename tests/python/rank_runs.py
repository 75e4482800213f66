"""Runs of the program over ranks that are processes of Open MPI, shared by tests."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest
import tiny_decoder

import headwise as hw

PROGRAM = pathlib.Path(os.environ.get("HEADWISE_CLI") or pathlib.Path(hw.__file__).parents[2] / "headwise/cli/headwise")
# Ranks may be more than CPUs here, and the user may be root.
ENV = dict(os.environ, PATH=f"{PROGRAM.parent}:{os.environ['PATH']}", OMPI_ALLOW_RUN_AS_ROOT="1",
           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1",
           OMPI_MCA_btl_vader_single_copy_mechanism="none", HEADWISE_THREADS="1",
           NO_COLOR="1")  # mpirun gives its ranks a terminal
TRAIN = "--epochs 2 --batch 16 --model-dim 32 --feed-dim 64 --depth 1 --ngrams 0 --vocabulary 120 --quiet"

needs_ranks = pytest.mark.skipif(not PROGRAM.exists() or (not shutil.which("mpirun") and os.environ.get("CI") != "true"),
                                 reason="mpirun is not installed, or the program is not built beside the module")


def run(line, room, **more):
    return subprocess.run(shlex.split(line), cwd=room, env=dict(ENV, **more), capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """Labelled texts and a small model made of them on one rank, in the order of --data."""
    folder = tmp_path_factory.mktemp("ranks")
    words = {"card": ["lost my card", "block the card", "new card please"], "loan": ["ask for a loan", "loan rate", "repay loan"],
             "rate": ["exchange rate", "rate of euro", "euro to dollar"]}
    rows = [f"{text} {n}\t{label}" for n in range(12) for label, texts in words.items() for text in texts]
    (folder / "bank.tsv").write_text("\n".join(rows) + "\n")
    done = run(f"headwise train bank.tsv --out model --data 1 {TRAIN}", folder)
    assert done.returncode == 0, done.stderr
    tiny_decoder.write_llama(folder / "llama")
    return folder


def ranks_of(parent):
    """Process ids of the ranks that an mpirun started, rank 0 first: numbers of processes may begin anew between two."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rsplit(")", 1)[1].split()
            if int(words[1]) == parent and "headwise" in (stat.parent / "cmdline").read_text():
                if rank := re.search(rb"\bOMPI_COMM_WORLD_RANK=(\d+)", (stat.parent / "environ").read_bytes()):
                    found[int(rank[1])] = int(stat.parent.name)
        except OSError:
            pass
    return [found[rank] for rank in sorted(found)]
