"""Refuses subinterpreters: the module's threads and types belong to the main one, and the process would crash at its end."""
# SPDX-License-Identifier: Apache-2.0

import importlib


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13 and later; before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not _is_main():
    raise ImportError(
        "headwise: it was imported in a subinterpreter, and its threads belong to the main interpreter; "
        "import it there, or use processes"
    )
