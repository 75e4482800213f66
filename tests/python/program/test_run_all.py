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
