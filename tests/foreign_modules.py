"""Modules in the current folder that are named like those that optcli and its libraries import."""

from __future__ import annotations

from pathlib import Path

_NAMES = ("numpy", "pyarrow", "onnxruntime", "cache", "metrics", "model", "app", "socket", "json")
_MARK = "imported.txt"


def write_foreign_modules(folder: Path) -> Path:
    """A folder with modules that leave a mark and fail where anything imports them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _NAMES:
        text = f"open({str(folder / _MARK)!r}, 'a').write({name!r})\nraise ImportError({name!r})\n"
        (folder / f"{name}.py").write_text(text)
    return folder


def imported(folder: Path) -> str:
    """Which of them something has imported."""
    mark = folder / _MARK
    return mark.read_text() if mark.exists() else ""
