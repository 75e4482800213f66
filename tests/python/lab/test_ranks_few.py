"""Fewer texts, tokens or rows than ranks: ranks without work change nothing, and what cannot be is one sentence."""

import pytest
from rank_runs import TRAIN, needs_ranks, room, run  # noqa: F401

pytestmark = needs_ranks


@pytest.mark.parametrize("ranks", ["--tensor 4", "--context 4", "--tensor 2 --context 2"])
def test_one_short_text(room, ranks):
    (room / "one.tsv").write_text("euro\trate\n")
    for words in ("predict model euro --json", "eval model one.tsv --json"):
        one, four = run(f"headwise {words}", room), run(f"mpirun -n 4 headwise {words} {ranks}", room)
        assert one.returncode == 0 and four.returncode == 0, one.stderr + four.stderr
        assert four.stdout == one.stdout, words


def test_no_text_at_all(room):
    """Both say what is missing; over ranks once."""
    (room / "none.tsv").write_text("")
    one, two = run("headwise eval model none.tsv", room), run("mpirun -n 2 headwise eval model none.tsv --tensor 2", room)
    assert one.returncode == two.returncode != 0
    assert one.stderr.strip() in two.stderr and two.stderr.count(one.stderr.strip()) == 1, two.stderr


@pytest.mark.parametrize("teams, heads", [("--data 4", "mha:heads=4"), ("--tensor 4", "mha:heads=4"), ("--tensor 4", "talking:heads=4"),
                                          ("--context 4", "talking:heads=4")])
def test_steps_of_few_texts_over_four_ranks(room, teams, heads):
    """The last step has fewer; parts of --data are texts, 8 a step, of which 5 are there at the end."""
    few = TRAIN.replace("--batch 16", "--batch 8" if "data" in teams else "--batch 2")
    name = f"{teams.split()[0]}-{heads.split(':')[0]}".strip("-")
    (room / "few.tsv").write_text("\n".join((room / "bank.tsv").read_text().splitlines()[:21]) + "\n")
    words = f"train few.tsv {few} --heads {heads}"
    alone = teams.replace("4", "1") if "context" not in teams else ""
    one, four = run(f"headwise {words} --out {name}1 {alone}", room), run(f"mpirun -n 4 headwise {words} --out {name}4 {teams}", room)
    assert one.returncode == 0 and four.returncode == 0, one.stderr + four.stderr
    assert (room / f"{name}4/model.safetensors").read_bytes() == (room / f"{name}1/model.safetensors").read_bytes()
