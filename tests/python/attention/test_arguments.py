"""The arguments of attention: every copy of their list says what the first one says, and nobody passes them by position."""
# SPDX-License-Identifier: Apache-2.0
import ast
import pathlib

import pytest

import headwise as hw

ROOT = pathlib.Path(__file__).parents[3]
PACKAGE = ROOT / "python/headwise"


def functions(text, name):
    """(argument, default as written) of every `def name` in a file of Python, in order."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            a = node.args
            plain = [None] * (len(a.args) - len(a.defaults)) + a.defaults
            pairs = [*zip(a.args, plain), *zip(a.kwonlyargs, a.kw_defaults)]
            found.append([(x.arg, None if value is None else ast.unparse(value)) for x, value in pairs])
    return found


STUB = (PACKAGE / "_core.pyi").read_text()
(ARGUMENTS,) = functions(STUB, "explain")  # made from the list of python/attention/arguments.h
NAMES = [name for name, _ in ARGUMENTS]


def test_the_list_is_whole():
    assert len(set(NAMES)) == len(NAMES) > 20 and NAMES[:4] == ["q", "k", "v", "mask"] and dict(ARGUMENTS)["layout"] == "'bshd'"


def test_stub_and_torch_have_the_same_arguments():
    overloads = functions(STUB, "attention")
    assert len(overloads) > 1
    for overload in overloads:
        assert sorted(name for name, _ in overload) == sorted(NAMES)
        # What makes an overload is asked for, so it has no default or another one.
        defaults = {name: value for name, value in overload if name not in ("return_lse", "probe", "mask")}
        assert defaults.items() <= dict(ARGUMENTS).items()
    assert functions((PACKAGE / "torch.py").read_text(), "attention") == [ARGUMENTS]


def test_backward_takes_the_same_words():
    (backward,) = functions(STUB, "attention_backward")
    own = {"dout", "out", "lse", "wants"}
    without = {"k_scale", "v_scale", "out", "return_lse", "probe", "pages"}  # outputs, and what has no gradient
    assert [pair for pair in backward if pair[0] not in own] == [pair for pair in ARGUMENTS if pair[0] not in without]
    assert own <= {name for name, _ in backward}


def test_gradients_come_in_one_order():
    ops = pytest.importorskip("torch") and __import__("headwise._torch.ops", fromlist=["WORDS"])
    assert [f"d{word}" for word in ops.WORDS] == list(hw.AttentionGradients._fields[: len(ops.WORDS)])
    assert len(ops._DIFFERENTIABLE) == len(ops.WORDS)
    assert set(ops._DIFFERENTIABLE) | set(ops.COEFFICIENTS) <= set(ops.NAMES)


def test_the_registered_op_takes_every_word_that_a_graph_holds():
    ops = pytest.importorskip("torch") and __import__("headwise._torch.ops", fromlist=["NAMES"])
    breaks_the_graph = {"out", "probe", "ctx", "pages", "k_scale", "v_scale"}
    beside = {"return_lse", "kernels", "coefficients", "relative"}  # lse, kernels; spread over several inputs
    assert set(NAMES) - breaks_the_graph - beside <= set(ops.NAMES)
    spelled = ops._call_words(dict.fromkeys(ops.NAMES) | {"seed": 0})
    assert set(spelled) == set(NAMES) - breaks_the_graph - {"q", "k", "v", "return_lse", "kernels"}


CALLS = {"attention", "attention_backward", "attention_op", "attention_backward_op", "attend", "_attention_here",
         "_through_op", "_recorded"}


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_call_passes_more_than_three_by_position(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            starred = any(isinstance(x, ast.Starred) for x in node.args)
            assert name not in CALLS or (len(node.args) <= 3 and not starred), f"{file.name}:{node.lineno}: {name}"
