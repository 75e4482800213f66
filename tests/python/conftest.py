"""Every test draws the same numbers of torch, whichever ran before it and beside it."""

import sys

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if torch := sys.modules.get("torch"):
        torch.manual_seed(1)
