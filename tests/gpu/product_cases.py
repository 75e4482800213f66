"""Whether mma.sync and wgmma give the same bits, by a program of its own: tests/gpu/products.cu."""
import pathlib
import re
import shutil
import subprocess
import tempfile

from common import check
from harness import BUILD

ROOT = pathlib.Path(__file__).resolve().parents[2]


def product_laws():
    """docs/gpu.md says what the two kinds of products agree on: a device that answers otherwise fails here."""
    if not shutil.which("nvcc"):
        return print("products: there is no nvcc here, nothing was compared", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(["nvcc", "-std=c++20", "-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr", f"-I{ROOT}",
                               f"-I{BUILD}/headwise/kernels/cuda/include", str(ROOT / "tests/gpu/products.cu"), "-o", f"{folder}/products"],
                              text=True, capture_output=True)
        check(made.returncode == 0, "products", made.stderr[-2000:])
        lines = subprocess.run([f"{folder}/products"], text=True, capture_output=True).stdout.splitlines()
    print("\n".join(lines), flush=True)
    found = [re.fullmatch(r"(\w+) \w+ d\d+: (\d+) of (\d+) differ.*", line) for line in lines]
    check(len(found) == 8 and all(found), "products", f"{len(lines)} lines, 8 are wanted")
    for m in found:
        check(int(m[2]) == 0, "products", m[0])
