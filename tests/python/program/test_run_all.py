"""The runner of all tests and the commands of the Makefile: what they tell, install and build."""
# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[3]
FILE = ROOT / "tools/run_all.py"


def runner():
    spec = importlib.util.spec_from_file_location("run_all", FILE)
    run_all = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_all)
    return run_all


def commands_of(target):
    return subprocess.run(["make", "-n", target], cwd=ROOT, text=True, capture_output=True, check=True).stdout


def test_builds_have_no_limit(monkeypatch):
    run_all, limits = runner(), []
    monkeypatch.setattr(run_all, "call", lambda *command, limit=3600, **_: (limits.append((command[1], limit)), (True, ""))[1])
    assert run_all.build("release")
    assert limits[-1] == ("--build", None)


@pytest.mark.parametrize("target", ["demo", "tour"])
def test_what_is_built_can_be_installed(target):
    installed = re.findall(r"install\(TARGETS (\w+)", (ROOT / "cmake/install.cmake").read_text())
    built = re.search(r"tools/build.sh (.*)", commands_of(target))[1].split()
    assert set(installed) - {"headwise_cuda"} <= set(built)  # a target only where HEADWISE_CUDA is on


def test_each_command_installs_what_it_needs():
    def packages(target):
        sections = re.search(r"setup.sh (.*)", commands_of(target))[1].split()
        done = subprocess.run(["./setup.sh", *sections], cwd=ROOT, env={**os.environ, "SETUP_LIST": "1"}, text=True,
                              capture_output=True, check=True)
        return set(done.stdout.split())

    demo, tests, checks = packages("demo"), packages("test"), packages("check")
    assert "g++" in demo and not demo & {"chromium", "qemu-user-static", "clang-14", "libgtest-dev", "requirements.txt"}
    assert {"chromium", "qemu-user-static", "libgtest-dev", "requirements.txt", "tests/requirements.txt"} <= tests
    assert "clang-14" not in tests and "clang-tidy-14" in checks and "chromium" not in checks
    assert not any("[" in name for name in tests)
    wrong = subprocess.run(["./setup.sh", "everything"], cwd=ROOT, text=True, capture_output=True)
    assert wrong.returncode == 2 and 'no section "everything"; there are: build python' in wrong.stderr


@pytest.mark.parametrize("there", [True, False])
def test_names_data_only_where_it_is(tmp_path, monkeypatch, capsys, there):
    run_all = runner()
    data = tmp_path / "shared/data"
    if there:
        data.mkdir(parents=True)
    seen = []

    def stage():
        seen.append(os.environ.get("HEADWISE_DATA"))
        return run_all.Tally()

    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    monkeypatch.setenv("RC_PARAMS", "seed=1")
    monkeypatch.setattr(run_all, "ROOT", tmp_path / "headwise")
    monkeypatch.setitem(run_all.STAGES, "look", stage)
    assert run_all.main(["look"]) == 0
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    assert seen == [str(data) if there else None]
    assert capsys.readouterr().out.endswith("headwise: 0 passed, 0 failed, 0 skipped\n")


CASES = """<testsuites><testsuite>
<testcase classname="tests.python.%s" name="test_a"><failure message="late"/></testcase>
<testcase classname="tests.python.%s" name="test_b"/>
</testsuite></testsuites>"""


@pytest.mark.parametrize("room, alone, passed, unsteady", [
    ("program.test_run_all", True, 2, 1),  # it starts processes, and passes when it runs alone
    ("program.test_run_all", False, 1, 0),
    ("attention.test_masks", True, 1, 0),  # nothing there waits for anybody
])  # fmt: skip
def test_what_waits_runs_once_more(tmp_path, monkeypatch, room, alone, passed, unsteady):
    run_all, calls = runner(), []

    def call(*command, **_):
        calls.append([str(word) for word in command])
        if len(calls) == 1:
            (tmp_path / "build/python.xml").write_text(CASES % (room, room))
            return False, ""
        return alone, ""

    (tmp_path / "build").mkdir()
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "call", call)
    tally = run_all.stage_python()
    assert (tally.passed, tally.failed, len(tally.unsteady)) == (passed, 2 - passed, unsteady)
    assert len(calls) == 1 + (room != "attention.test_masks")
    assert all(f"tests/python/{room.replace('.', '/')}.py::test_a" in words for words in calls[1:])


@pytest.mark.parametrize("preset, name, passed, failed", [
    ("release", "server_a_test", 1, 0), ("release", "bits_a_test", 0, 1),
    ("tsan", "server_a_test", 0, 1),  # a race that was seen once is there
])  # fmt: skip
def test_programs_that_wait_run_once_more(tmp_path, monkeypatch, preset, name, passed, failed):
    run_all, calls = runner(), []

    def call(*command, **_):
        calls.append(command)
        results = tmp_path / f"build/{preset}/results"
        ran = "<failure/>" if len(calls) == 1 else ""
        (results / f"{name}.xml").write_text(f'<a><testcase classname="A" name="B">{ran}</testcase></a>')
        if len(calls) == 1:
            (results / "ctest.junit").write_text(f'<a><testcase name="{name}" status="fail"/></a>')
        return len(calls) > 1, ""

    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "call", call)
    tally = run_all.ctest(preset)
    assert (tally.passed, tally.failed, tally.unsteady) == (passed, failed, [name] * passed)
    assert ("-R", f"^{name}$") == calls[-1][-2:] or failed


def test_many_failures_are_no_stall():
    names = [f"server_{i}_test" for i in range(runner().FEW + 1)]
    assert runner().passed_alone(names, lambda name: True, lambda name: True) == set()
