"""The program `headwise` that the wheel carries, started in the place of the script."""
# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
import sys


def main() -> int:
    program = pathlib.Path(__file__).parent / "bin/headwise"
    if not program.exists():
        print("error: this build of the package has no program; `make wheel` makes one that has", file=sys.stderr)
        return 1
    os.execv(program, ["headwise", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
