"""A net for changes that shall change nothing: what a fixed set of commands writes and says.

    .venv/bin/python benchmarks/net.py record before.json      # at the revision before
    .venv/bin/python benchmarks/net.py record after.json       # at the revision after
    .venv/bin/python benchmarks/net.py compare before.json after.json

A record holds the help of every verb, the schemas, and the exit code and words for wrong recipes. Of
builds of the quickstart's recipes it holds the digest of each file of each artifact, the JSON reports,
an inspection of each artifact, the verdicts, a gate, a plan, the bundle for Ray Serve, the repositories
for Triton and KServe, and the answers of `infer`. Times and what follows from them are masked: of such
a value the record says only that it is there. `compare` prints each difference and ends with 1 if there
is one.

`record --only WORD` runs only the commands whose name holds the word.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ("eager", "onnx", "onnx-int8", "openvino-int8", "pruned-onnx")
OTHERS = ("exported", "torchscript", "aoti", "sparse", "onnx-int8-ort", "ort", "onnx-fp16")
# A value below one of these names is a time, follows from times, or names a moment, a process, a
# folder or the code of optcli.
MASKED = {
    *("latency", "protocol", "took_s", "seconds", "build_s", "started", "finished", "log", "repeat"),
    *("share_of_time", "static_gains", "packs_each_call", "measured_at", "machine", "environment"),
    *("speedup", "frontier", "recommended", "slowest", "saved", "created", "key", "cached", "code"),
    *("parent", "digest", "figures", "flags", "comparisons", "operators", "sentence", "causes"),
    *("recommendation", "recommendations", "exit_reason"),
}
# Files that hold addresses, times, or the order in which a compiler ran: only their presence counts.
UNSTABLE = {".html", ".md", ".log", ".jpg", ".parquet", ".so", ".ort", ".pt", ".npz"}
_VERBS = (
    *("init", "doctor", "passes", "schema", "build", "tune", "bench", "compare", "profile", "roofline"),
    *(
        "inspect",
        "verify-accuracy",
        "gate",
        "baseline save",
        "baseline ls",
        "history",
        "plan",
        "deploy",
    ),
    *("serve", "loadtest", "infer", "cache ls", "cache verify", "cache why", "cache gc"),
)
_WRONG = {
    "misspelt key": "{version: 1, name: net, modle: {source: x}}",
    "no version": "{name: net}",
    "not YAML": "version: [1",
    "missing model": "{version: 1, name: net, model: {source: onnx:nowhere.onnx}, variants: {a: []}}",
    "unknown pass": "{version: 1, extends: recipes/quickstart.yaml, variants: {a: [export_onxx]}}",
    "wrong option": "{version: 1, extends: recipes/quickstart.yaml,"
    " variants: {a: [{prune: {ratio: 2}}]}}",
    "wrong data": "{version: 1, extends: recipes/quickstart.yaml,"
    " data: {evaluation: {source: 'npz:no.npz'}}}",
    "wrong shape": "{version: 1, extends: recipes/quickstart.yaml,"
    " inputs: [{name: image, shape: [batch, 3, 32, 32]}]}",
}


@dataclass(frozen=True)
class Step:
    """A command by name, its arguments, and where below the project it writes what is recorded."""

    name: str
    arguments: Sequence[str]
    written: Sequence[str] = field(default=())
    saved: str | None = None  # the file that stdout goes to, for a later step


def _build(recipe: str, variants: Sequence[str]) -> list[str]:
    return ["build", recipe, *(part for variant in variants for part in ("--only", variant)), "--json"]


def _deploy(folder: str, plan: str, *arguments: str) -> list[str]:
    return ["deploy", "onnx-int8", "net.yaml", "--plan", plan, "--out", folder, *arguments]


def steps() -> list[Step]:
    """All commands, in the order in which they run."""
    plan = ["plan", "--curve", "1:4ms,8:16ms,16:30ms", "--rate", "200", "--slo", "p95=60ms", "--json"]
    place = ["--target", "kserve", "--storage-uri", "pvc://models/digits"]
    answered = ["--input", "images", "--output", "answers", "--format", "jsonl", "--batch-size", "4"]
    wrong = [Step(f"wrong: {name}", ["build", f"{name}.yaml"]) for name in _WRONG]
    return [
        *(Step(f"help of {verb}", [*verb.split(), "--help"]) for verb in _VERBS),
        *(Step(f"schema of {what}", ["schema", what]) for what in ("recipe", "plan-file", "plan")),
        Step("passes", ["passes"]),
        *wrong,
        Step("build", _build("net.yaml", QUICKSTART), ["artifacts/net"]),
        Step("build again", _build("net.yaml", QUICKSTART)),
        Step("baseline", ["baseline", "save", "net"]),
        Step("build of others", _build("others.yaml", OTHERS), ["artifacts/others"]),
        *(Step(f"inspect {name}", ["inspect", f"net/{name}", "--json"]) for name in QUICKSTART),
        *(Step(f"inspect {name}", ["inspect", f"others/{name}", "--json"]) for name in OTHERS),
        Step("verify-accuracy", ["verify-accuracy", "net.yaml", "--no-layers", "--json"]),
        Step("compare", ["compare", "net.yaml", "--json"]),
        Step("gate", ["gate", "net.yaml", "--baseline", "net", "--json"]),
        Step("plan", plan, saved="plan.json"),
        Step("plan for ray", [*plan, "--target", "ray"], saved="ray.json"),
        Step("bundle", _deploy("ray", "ray.json", "--target", "ray", "--images"), ["ray"]),
        Step("triton", _deploy("triton", "plan.json", "--target", "triton"), ["triton"]),
        Step("kserve", _deploy("kserve", "plan.json", *place), ["kserve"]),
        Step("infer", ["infer", "onnx-int8", "net.yaml", *answered], ["answers"]),
        Step("cache verify", ["cache", "verify"]),
    ]


def _project(folder: Path) -> None:
    """The quickstart's recipes and data, recipes that are wrong, and some images."""
    from PIL import Image

    shutil.copytree(ROOT / "recipes", folder / "recipes")
    shutil.copytree(ROOT / "calibration_data", folder / "calibration_data")
    quick = (
        "name: {}\nversion: 1\nextends: recipes/{}.yaml\nlatency: {{mode: quick, batch_sizes: [1]}}\n"
    )
    (folder / "net.yaml").write_text(quick.format("net", "quickstart"), encoding="utf-8")
    (folder / "others.yaml").write_text(quick.format("others", "quickstart-all"), encoding="utf-8")
    for name, text in _WRONG.items():
        (folder / f"{name}.yaml").write_text(text + "\n", encoding="utf-8")
    (folder / "images").mkdir()
    for index in range(8):
        Image.linear_gradient("L").rotate(45 * index).save(folder / "images" / f"{index}.png")


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a JSON document by their places; a masked one as its name alone."""
    if isinstance(value, dict):
        timed = value.get("name") == "speed-up"  # a verdict on it
        for name, inner in value.items():
            below = f"{place}.{name}"
            if name in MASKED or name.endswith(("_s", "_ms")) or (timed and name != "name"):
                yield below, "masked"
            else:
                yield from _leaves(inner, below)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{index}]")
    else:
        yield place, value


def _words(text: str, folder: Path) -> str:
    """Printed text without the project's folder, and without times."""
    plain = text.replace(str(folder), "PROJECT")
    plain = re.sub(r"/tmp/[\w./-]+", "TEMPORARY", plain)
    return re.sub(r"\b\d+(\.\d+)?\s?(ms|s|min|%)(?!\w)", "MEASURED", plain)


def _said(text: str, folder: Path) -> dict[str, Any]:
    """The values of a JSON document by their places, or the lines of a text."""
    try:
        document = json.loads(text)
    except ValueError:
        return {"text": _words(text, folder).splitlines()}
    return {
        place: _words(value, folder) if isinstance(value, str) else value
        for place, value in _leaves(document)
    }


def _files(folder: Path, project: Path) -> dict[str, Any]:
    """Each file below a folder: its digest, or for JSON its values."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(project).as_posix()
        if not path.is_file() or "/logs/" in name or "/pictures/" in name:
            continue
        name = re.sub(r"-[0-9a-f]{8}\.", ".", name)  # of the folder whose images were answered
        if path.suffix in (".json", ".jsonl") and "golden" not in name:
            text = path.read_text(encoding="utf-8")
            document = f"[{','.join(text.splitlines())}]" if path.suffix == ".jsonl" else text
            found |= {f"{name} {place}": value for place, value in _said(document, project).items()}
        elif path.suffix in UNSTABLE or "/aoti/" in name:
            found[name] = "there"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _run(step: Step, project: Path) -> dict[str, Any]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("OPTCLI_")
    } | {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "optcli", *step.arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if step.saved:
        (project / step.saved).write_text(ended.stdout, encoding="utf-8")
    recorded: dict[str, Any] = {"exit": ended.returncode} | _said(ended.stdout, project)
    if step.name.startswith("wrong"):
        recorded |= {f"stderr {place}": said for place, said in _said(ended.stderr, project).items()}
    elif ended.returncode not in (0, 1, 5):
        print(f"{step.name} ended with {ended.returncode}:\n{ended.stderr[-2000:]}", file=sys.stderr)
    for written in step.written:
        recorded |= _files(project / written, project)
    return recorded


def record(only: str) -> dict[str, dict[str, Any]]:
    """What each command wrote and said, by its name."""
    with tempfile.TemporaryDirectory(prefix="net-") as folder:
        project = Path(folder)
        _project(project)
        recorded = {}
        for step in steps():
            if only in step.name:
                print(step.name, file=sys.stderr, flush=True)
                recorded[step.name] = _run(step, project)
        return recorded


def differences(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A line for each value that is not the same in two records."""
    for step in [*before, *(name for name in after if name not in before)]:
        one, other = before.get(step), after.get(step)
        if one is None or other is None:
            yield f"{step}: only in the record {'after' if one is None else 'before'}"
            continue
        for place in sorted(one.keys() | other.keys()):
            first, second = one.get(place, "absent"), other.get(place, "absent")
            if isinstance(first, list) and isinstance(second, list):
                changed = difflib.unified_diff(first, second, n=0, lineterm="")
                yield from (f"{step}: {line}" for line in list(changed)[2:] if line[0] in "+-")
            elif first != second:
                yield f"{step}: {place}: {first!r} -> {second!r}"


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--only", default="")
    comparing = actions.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    chosen = parser.parse_args()
    if chosen.action == "record":
        chosen.file.write_text(json.dumps(record(chosen.only), indent=1), encoding="utf-8")
        return 0
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (chosen.before, chosen.after)]
    lines = list(differences(records[0], records[1]))
    print("\n".join(lines) or "no difference")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
