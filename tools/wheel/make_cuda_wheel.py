#!/usr/bin/env python3
"""Makes the wheel headwise-cuda: libheadwise_cuda.so alone, which the wheel headwise finds beside itself.

Usage: make_cuda_wheel.py [--library FILE] [FOLDER]    FOLDER: dist
Without --library the file is built in build/cuda, which needs nvcc and takes long."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from words import metadata, platform_tag, write_wheel

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "libheadwise_cuda.so"
INIT = '"""The CUDA kernels of headwise: a library that headwise loads when it meets the first CUDA tensor."""\n'
ABOUT = """The CUDA kernels of headwise, multi-head attention in which the head is the unit.

`pip install headwise headwise-cuda`: nothing is to be imported. headwise finds the library beside itself and loads it when
it meets the first CUDA tensor. Both have the same version; the driver comes with the system.
"""


def build():
    folder = ROOT / "build/cuda"
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DHEADWISE_CUDA=ON",
                    "-DHEADWISE_CLI=OFF", "-DHEADWISE_INSTALL=OFF"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    subprocess.run(["cmake", "--build", folder, "--target", "headwise_cuda"], check=True, stdout=subprocess.DEVNULL)
    return folder / NAME


def stripped(library):
    """Without what only a debugger reads."""
    with tempfile.TemporaryDirectory() as room:
        small = pathlib.Path(room) / NAME
        subprocess.run(["strip", "--strip-unneeded", "-o", small, library], check=True)
        return small.read_bytes()


def make(library, folder):
    version = re.search(r"project\(headwise VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    about = metadata([
        ("Metadata-Version", "2.1"), ("Name", "headwise-cuda"), ("Version", version),
        ("Summary", "The CUDA kernels of headwise"), ("License", "Apache-2.0"), ("License-File", "LICENSE"),
        ("Classifier", "Operating System :: POSIX :: Linux"), ("Classifier", "Environment :: GPU :: NVIDIA CUDA"),
        ("Requires-Python", ">=3.10"), ("Requires-Dist", f"headwise=={version}"),
        ("Description-Content-Type", "text/markdown"),
    ], ABOUT)  # fmt: skip
    files = {
        "headwise_cuda/__init__.py": INIT.encode(),
        f"headwise_cuda/{NAME}": stripped(library),
        f"headwise_cuda-{version}.dist-info/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return write_wheel(folder, "headwise_cuda", version, f"py3-none-{platform_tag([library])}", files, about)


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--library", type=pathlib.Path, help=f"a {NAME} that is there already")
    words.add_argument("folder", type=pathlib.Path, nargs="?", default=pathlib.Path("dist"))
    given = words.parse_args()
    if given.library and not given.library.is_file():
        sys.exit(f"make_cuda_wheel: there is no {given.library}; leave --library away to build it")
    print(make(given.library or build(), given.folder))


if __name__ == "__main__":
    main()
