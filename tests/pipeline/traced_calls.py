"""Carry recorded steps out again and print which files of optcli had a function called, by key."""

import importlib
import json
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import optcli

PACKAGE = Path(optcli.__file__).parent


def called(work) -> set[str]:
    """The files below optcli of every function called, without what runs while a module is imported."""
    found: set[str] = set()

    def note(frame, event, argument):  # gives nothing: lines and returns are not traced
        if frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    threading.settrace(note)
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(None)
        threading.settrace(None)
    below = (Path(name) for name in found if name.startswith(f"{PACKAGE}/"))
    return {path.relative_to(PACKAGE).as_posix() for path in below}


def main() -> None:
    from optcli.pipeline import building, step  # all of it is imported before anything is noted

    assert building
    importlib.import_module("optcli.cli")
    found = {}
    for place in map(Path, sys.argv[1:]):
        call = json.loads(place.read_text())
        with tempfile.TemporaryDirectory() as folder:
            found[place.parent.name] = sorted(called(partial(step.repeated, call, Path(folder))))
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
