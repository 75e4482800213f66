"""hw.distributed: ranks in Python, as threads, under mpirun and over mpi4py's communicator, with one rank's bits."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading

import numpy as np
import pytest

import headwise as hw

RANDOM = np.random.default_rng(5)
ENV = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
           OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_btl_vader_single_copy_mechanism="none", HEADWISE_THREADS="1",
           PYTHONPATH=os.pathsep.join([str(pathlib.Path(hw.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun") and os.environ.get("CI") != "true", reason="mpirun is not installed")


def on_ranks(ranks, work):
    """What work gives on every rank, in their order."""
    got = [None] * ranks
    hw.distributed.run(ranks, lambda team: got.__setitem__(team.rank, work(team)))
    return got


def test_gather_exchange_sum_and_share():
    whole = RANDOM.standard_normal((7, 6)).astype(np.float32)

    def work(team):
        begin, end = 7 * team.rank // team.ranks, 7 * (team.rank + 1) // team.ranks
        mine = whole[begin:end]
        columns = team.exchange(mine.copy(), 1)
        back = team.exchange(columns, 0)
        assert np.array_equal(back, mine) and columns.shape == (7, 6 // team.ranks)
        return team.gather(mine.copy()), team.sum(whole * (team.rank + 1)), team.share(whole * (team.rank + 1)), team.counted

    for ranks in (1, 2):
        for joined, summed, shared, counted in on_ranks(ranks, work):
            assert np.array_equal(joined, whole) and np.array_equal(shared, whole)
            assert np.array_equal(summed, whole if ranks == 1 else whole + 2 * whole)
            assert (counted["bytes"] > 0) == (ranks > 1)


STACK = dict(heads="gqa:heads=8,kv_heads=4,dim=4", model_dim=32, feed_dim=64, depth=2, positions="rope", seed=3)


def step(layer, x, dy):
    y = layer.forward(x, mask=hw.Mask.causal())
    return y, layer.backward(dy)


def test_tensor_ranks_learn_with_one_set_of_bits():
    x, dy = RANDOM.standard_normal((2, 2, 9, 32)).astype(np.float32)

    def work(team):
        whole = hw.Stack(**STACK)
        cut = hw.Stack(**STACK, teams=hw.distributed.Teams(team, order="tree"))
        cut.take_slices(whole)
        y, dx = step(cut, x, dy)
        cut.join_slices(whole, gradients=True)
        return [y, dx, *whole.gradients().values()]

    one = on_ranks(1, work)[0]
    plain = hw.Stack(**STACK)
    for a, b in zip(one, [*step(plain, x, dy), *plain.gradients().values()], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)  # a tree adds in another order
    for ranks in (2, 4, 8):
        for got in on_ranks(ranks, work):
            assert all(np.array_equal(a, b) for a, b in zip(one, got, strict=True)), ranks


def test_one_rank_and_context_have_the_bits_of_no_teams():
    x = RANDOM.standard_normal((2, 9, 32)).astype(np.float32)
    dy = RANDOM.standard_normal((2, 9, 32)).astype(np.float32)
    plain = hw.Stack(**STACK)
    want = plain(x, mask=hw.Mask.causal())
    learnt = [*step(plain, x, dy), *plain.gradients().values()]

    def tensor(team):
        cut = hw.Stack(**STACK, teams=hw.distributed.Teams(team))
        cut.take_slices(hw.Stack(**STACK))
        return cut(x, mask=hw.Mask.causal())

    def context(team):
        cut = hw.Stack(**STACK, teams=hw.distributed.Teams(context=team))
        return [cut(x, mask=hw.Mask.causal()), *step(cut, x, dy), *cut.gradients().values()]

    for ranks in (2, 3, 4):
        for got in on_ranks(ranks, context):
            assert all(np.array_equal(a, b) for a, b in zip(got, [want, *learnt], strict=True))
    assert all(np.array_equal(y, want) for y in on_ranks(4, tensor))


def test_a_layer_by_itself_holds_its_rows():
    layer = dict(heads="mha:heads=4,dim=8", model_dim=32, seed=1)
    x = RANDOM.standard_normal((11, 32)).astype(np.float32)
    dy = RANDOM.standard_normal((11, 32)).astype(np.float32)
    plain = hw.MultiHead(**layer)
    want = plain.forward(x, offsets=[0, 4, 11])
    dx = plain.backward(dy)

    def work(team):
        begin, end = 11 * team.rank // team.ranks, 11 * (team.rank + 1) // team.ranks
        cut = hw.MultiHead(**layer, teams=hw.distributed.Teams(context=team))
        with pytest.raises(ValueError, match="give this rank's rows and the offsets of all rows"):
            cut(x[begin:end].copy())
        y = team.gather(cut.forward(x[begin:end].copy(), offsets=[0, 4, 11]))
        return [y, team.gather(cut.backward(dy[begin:end].copy())), *cut.gradients().values()]

    for got in on_ranks(2, work):
        assert all(np.array_equal(a, b) for a, b in zip(got, [want, dx, *plain.gradients().values()], strict=True))


def test_refusals_are_sentences():
    def differ(team):
        team.agree("start", {"seed": team.rank})

    with pytest.raises(ValueError, match="start: rank 1 has seed 1, rank 0 has 0; start all ranks with the same words"):
        hw.distributed.run(2, differ)
    with pytest.raises(ZeroDivisionError):  # the others wait and are told
        hw.distributed.run(2, lambda team: 1 // team.rank and None or team.gather(np.ones(3, np.float32)))
    with pytest.raises(RuntimeError, match="has not come to rank 0 for 0.2 s"):
        told = threading.Event()  # by rank 0, that rank 1 did not come

        def late(team):
            assert team.rank == 0 or told.wait(60)
            try:
                team.sum(np.ones(3, np.float32))
            finally:
                told.set()
        hw.distributed.run(2, late, seconds=0.2)
    with pytest.raises(TypeError, match="comm is of type int; give a communicator of mpi4py"):
        hw.distributed.start(comm=3)
    with pytest.raises(TypeError, match="teams is an int; give a headwise.distributed.Teams or None"):
        hw.MultiHead("mha:heads=4,dim=8", 32, teams=3)
    with pytest.raises(ValueError, match='no engine "smoke"'):
        hw.distributed.start("smoke")
    assert hw.distributed.start("none").ranks == 1


PROGRAM = """
    import pathlib
    import sys
    import numpy as np
    import headwise as hw

    {before}
    world = hw.distributed.start({words})
    assert world.ranks == 2 and world.engine == "mpi"
    layer = dict(heads="gqa:heads=4,kv_heads=2,dim=8", model_dim=32, seed=1)
    x = np.random.default_rng(0).standard_normal((2, 9, 32)).astype(np.float32)
    whole = hw.MultiHead(**layer)
    cut = hw.MultiHead(**layer, teams=hw.distributed.Teams(world))
    cut.take_slices(whole)
    assert np.array_equal(cut(x), whole(x))
    if "fail" in sys.argv and world.rank == 1:
        raise KeyError("this rank fails")
    if "fail" in sys.argv:
        world.sum(x)
    assert np.array_equal(world.share(np.array([world.rank], np.float64)), [0.0])
    # Not by print: mpirun mixes what two ranks say in one line.
    pathlib.Path(sys.argv[1], str(world.rank)).touch()
"""


def mpirun(tmp_path, before="", words="", *args):
    """The finished program, and the ranks that came to its end."""
    file, ends = tmp_path / "ranks.py", pathlib.Path(tempfile.mkdtemp(dir=tmp_path))
    file.write_text(textwrap.dedent(PROGRAM).format(before=before, words=words))
    done = subprocess.run(["mpirun", "-n", "2", sys.executable, file, ends, *args], env=ENV, capture_output=True, text=True, timeout=300)
    return done, sorted(end.name for end in ends.iterdir())


@needs_mpirun
def test_under_mpirun(tmp_path):
    done, ends = mpirun(tmp_path)
    assert done.returncode == 0 and ends == ["0", "1"], done.stderr
    failed, ends = mpirun(tmp_path, "", "", "fail")  # the other rank waits for it: nothing hangs
    assert failed.returncode != 0 and "this rank fails" in failed.stderr and ends == []


@needs_mpirun
def test_a_communicator_of_mpi4py(tmp_path):
    pytest.importorskip("mpi4py")
    done, ends = mpirun(tmp_path, "from mpi4py import MPI", "comm=MPI.COMM_WORLD")
    assert done.returncode == 0 and ends == ["0", "1"], done.stderr
    split = "from mpi4py import MPI; comm = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)"  # ranks the other way round
    done, ends = mpirun(tmp_path, split, "comm=comm")
    assert done.returncode == 0 and ends == ["0", "1"], done.stderr
