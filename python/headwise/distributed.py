"""hw.distributed: several ranks, one model, the same bits as one rank.

`start` under mpirun, or over a communicator of mpi4py; `run` on threads, for trials. Layers take `Teams`.
"""
# SPDX-License-Identifier: Apache-2.0

import atexit
import ctypes
import sys
from collections.abc import Callable
from typing import Any

from . import _core
from ._core import Communicator, Teams

__all__ = ["Communicator", "Teams", "run", "start"]


def _handle(comm: Any) -> int:
    """The MPI_Comm inside an mpi4py communicator."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(comm, mpi.Comm):
        raise TypeError(f"distributed: comm is of type {type(comm).__name__}; give a communicator of mpi4py, such as MPI.COMM_WORLD")
    vendor = mpi.get_vendor()[0]
    if vendor != "Open MPI":
        raise NotImplementedError(f"distributed: mpi4py runs over {vendor}; headwise knows Open MPI alone, so start the ranks with it")
    if hasattr(mpi, "_handleof"):
        return int(mpi._handleof(comm))
    return int(ctypes.c_void_p.from_address(mpi._addressof(comm)).value or 0)


def start(
    engine: str = "", *, comm: Any = None, seconds: float = 300, start_seconds: float = 60, check: bool = False
) -> Communicator:
    """All ranks that were started.

    engine: "mpi", "none", or "": what HEADWISE_ENGINE says, else mpi under mpirun, else one rank. comm: an mpi4py
    communicator, instead. seconds: the deadline of each call. check: ranks compare every call, not the first 64 alone.
    """
    if comm is not None and engine not in ("", "mpi"):
        raise ValueError(f'distributed: engine is "{engine}" and comm is given; comm is of mpi, leave engine out')
    return _core.start_ranks(engine, 0 if comm is None else _handle(comm), seconds, start_seconds, check)


def run(ranks: int, work: Callable[[Communicator], object], *, seconds: float = 300, check: bool = True) -> None:
    """work(communicator) on that many threads of this process, for trials and tests; the first error is raised here."""
    _core.run_ranks(ranks, work, seconds, check)


# MPI_Finalize waits for all ranks; after an error the others may never come, and mpirun ends them.
atexit.register(lambda: _core.end_ranks(getattr(sys, "last_value", None) is None))
