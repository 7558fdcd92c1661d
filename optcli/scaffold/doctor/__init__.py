"""What works on this machine, what is missing and how to get it.

Every runtime is imported in a worker and really runs a tiny model: a library that is installed and
does not load, or crashes, is found here and not in the middle of a build.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from optcli.scaffold.doctor import machine, packages, storage
from optcli.scaffold.doctor.checks import Check, Examination, State, document
from optcli.scaffold.doctor.runtimes import RUNTIMES, runtime_checks


def examine(store: Path) -> Examination:
    """Look at the machine, the packages, each runtime and the store; nothing is changed.

    Needs seconds: libraries are imported and a C++ compiler is called.
    """
    checks = [*machine.checks(), *packages.checks()]
    # The threads live as long as their workers, which die with the thread that started them.
    with ThreadPoolExecutor(max_workers=2) as pool:
        for of_runtime in pool.map(runtime_checks, RUNTIMES):
            checks.extend(of_runtime)
    checks.extend(storage.checks(store))
    return Examination(checks=tuple(checks))
