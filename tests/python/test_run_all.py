"""The runner of all tests: what it tells them of data."""
# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import pathlib

import pytest

FILE = pathlib.Path(__file__).parents[2] / "tools/run_all.py"


@pytest.mark.parametrize("there", [True, False])
def test_names_data_only_where_it_is(tmp_path, monkeypatch, capsys, there):
    spec = importlib.util.spec_from_file_location("run_all", FILE)
    run_all = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_all)
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
