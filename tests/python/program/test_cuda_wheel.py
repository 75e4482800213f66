"""The wheel headwise-cuda: what is in it, and that the wheel headwise and its program find it beside themselves."""
# SPDX-License-Identifier: Apache-2.0
import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import headwise as hw

ROOT = pathlib.Path(__file__).resolve().parents[3]
MAKER = ROOT / "tools/wheel/make_cuda_wheel.py"
STRANGER = "is of another version of headwise"


def run(*command, **words):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **words)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made of a library that loads, and whose table is of no version."""
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    room = tmp_path_factory.mktemp("cuda")
    (room / "stub.c").write_text("const void* headwise_cuda_table(void) { static const unsigned none[16]; return none; }\n")
    library = room / "libheadwise_cuda.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, room / "stub.c"], check=True)
    made = run(sys.executable, MAKER, "--library", library, room / "dist")
    assert made.returncode == 0, made.stderr
    return pathlib.Path(made.stdout.strip())


def test_the_wheel_says_what_it_is(wheel):
    machine = os.uname().machine
    assert re.fullmatch(rf"headwise_cuda-{re.escape(hw.__version__)}-py3-none-manylinux_2_\d+_{machine}\.whl", wheel.name)
    archive = zipfile.ZipFile(wheel)
    info = f"headwise_cuda-{hw.__version__}.dist-info"
    assert set(archive.namelist()) == {
        "headwise_cuda/__init__.py", "headwise_cuda/libheadwise_cuda.so", f"{info}/licenses/LICENSE",
        f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD",
    }  # fmt: skip
    about = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert about["Name"] == "headwise-cuda" and about["Version"] == hw.__version__
    assert about["Requires-Dist"] == f"headwise=={hw.__version__}"


def test_pip_installs_it_and_both_find_it(wheel, tmp_path):
    assert hw.cuda_devices().startswith("none: libheadwise_cuda.so was not loaded") or "none" not in hw.cuda_devices()
    done = run(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", tmp_path, wheel)
    assert done.returncode == 0, done.stderr
    (tmp_path / "headwise").symlink_to(pathlib.Path(hw.__file__).parent)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = run(sys.executable, "-c", "import headwise; print(headwise.cuda_devices())", env=env)
    assert STRANGER in said.stdout, said.stdout + said.stderr


def test_the_program_finds_it(wheel, tmp_path):
    program = os.environ.get("HEADWISE_CLI")
    if not program:
        pytest.skip("HEADWISE_CLI names no program")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (tmp_path / "headwise/bin").mkdir(parents=True)
    mine = shutil.copy(program, tmp_path / "headwise/bin/headwise")
    for name in (mine, "headwise"):  # "headwise": as the script of the wheel starts it
        said = subprocess.run([name, "doctor"], executable=mine, capture_output=True, text=True, check=False)
        assert STRANGER in said.stdout, said.stdout + said.stderr
    shutil.rmtree(tmp_path / "headwise_cuda")
    assert "was not loaded" in run(mine, "doctor").stdout


def test_a_broken_library_says_why(wheel, tmp_path):
    (tmp_path / "headwise_cuda").mkdir()
    (tmp_path / "headwise_cuda/libheadwise_cuda.so").write_text("no library")
    (tmp_path / "headwise").symlink_to(pathlib.Path(hw.__file__).parent)
    said = run(sys.executable, "-c", "import headwise; print(headwise.cuda_devices())",
               env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert "was not loaded" in said.stdout and "invalid ELF header" in said.stdout or "file too short" in said.stdout


def test_a_file_that_is_not_there_is_refused(tmp_path):
    done = run(sys.executable, MAKER, "--library", tmp_path / "none.so", tmp_path)
    assert done.returncode and "there is no" in done.stderr


def test_the_tag_follows_what_a_library_asks_for(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools/wheel"))
    import words

    said = {"-hW": "  Machine:   Advanced Micro Devices X86-64\n"}
    monkeypatch.setattr(words, "readelf", lambda option, _: said[option])
    for needs, tag in (
        ("", "manylinux_2_17_x86_64"),
        ("Name: GLIBC_2.2.5 Name: GLIBC_2.34", "manylinux_2_34_x86_64"),
        ("Name: GLIBC_2.14 Name: GLIBCXX_3.4.30", "manylinux_2_35_x86_64"),
        ("Name: GLIBC_2.36 Name: GLIBCXX_3.4.29", "manylinux_2_36_x86_64"),
    ):
        said["-VW"] = f"Version definition section: GLIBC_2.99\nVersion needs section:\n{needs}"
        assert words.platform_tag(["any"]) == tag
    said["-VW"] = "Version needs section: Name: GLIBCXX_3.4.99"
    with pytest.raises(SystemExit, match="GLIBCXX_3.4.99"):
        words.platform_tag(["any"])


def test_a_machine_without_a_wheel_is_refused(tmp_path):
    done = run(ROOT / "tools/wheel/make_wheel.sh", tmp_path, "riscv64")
    assert done.returncode == 2 and "there is no machine riscv64; give aarch64 or x86_64" in done.stderr
