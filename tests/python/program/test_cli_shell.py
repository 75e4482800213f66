"""What the program tells shells and man: every command and option is in it, and bash completes by it."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

CLI = os.environ.get("HEADWISE_CLI")
ROOT = pathlib.Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not CLI, reason="needs HEADWISE_CLI")


def said(*words):
    return subprocess.run([CLI, *words], text=True, capture_output=True, check=True).stdout


def commands():
    return re.findall(r"^  (\w+) {2,}", said("--help").split("Subcommands:")[1], re.M)


def test_manual_has_every_command_and_option():
    page = said("manual")
    assert page.startswith(".TH HEADWISE 1")
    for name in commands():
        part = re.search(rf"^\.SS headwise {name}\n(.*?)(?=^\.S[SH])", page, re.M | re.S)
        assert part, name
        for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", said(name, "--help"), re.M):
            assert option.replace("-", "\\-") in part[1], (name, option)


def test_every_option_the_pages_name_is_there():
    known = {option for name in commands() for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", said(name, "--help"))} | {"--version"}
    pages = ROOT / "docs"
    for page in [pages / "cli.md", *(pages / f"{name}.md" for name in ("recognizer", "lab", "viewer", "serve", "decoder", "report"))]:
        for line in re.findall(r"^\|.*|^headwise .*", page.read_text(), re.M):
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", line):
                assert option in known, f"{page.name}: {option}: {line}"


def complete(*words):
    script = f"""source <({CLI} completion bash)
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _headwise; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return subprocess.run(["bash", "-c", script], text=True, capture_output=True, check=True).stdout.split()


def test_bash_completes_commands_options_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.tsv").touch()
    assert complete("headwise", "tra") == ["train"]
    assert set(commands()) <= set(complete("headwise", '""'))
    assert complete("headwise", "explain", "--q-to") == ["--q-tokens"]
    assert complete("headwise", "train", "ban") == ["bank.tsv"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_well_formed(shell, tmp_path):
    script = tmp_path / "script"
    script.write_text(said("completion", shell))
    assert all(name in script.read_text() for name in commands())
    if shutil.which(shell):
        subprocess.run([shell, "-n" if shell != "fish" else "--no-execute", script], check=True)


def test_another_shell_is_refused():
    done = subprocess.run([CLI, "completion", "tcsh"], text=True, capture_output=True)
    assert done.returncode == 2 and "tcsh" in done.stderr
