"""Archives with bytes flipped and members shuffled, from a seed: opened whole, or refused; no marker.

`OPTCLI_FUZZ_ROUNDS` makes it longer by hand.
"""

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hostile_archives import members, pickled, written

from optcli.errors import OptcliError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torchscript as torchscript_format
from optcli.workers import Channel, run

pytestmark = pytest.mark.slow
ROUNDS = int(os.environ.get("OPTCLI_FUZZ_ROUNDS", "150"))
OPENERS = {"exported": exported_format, "torchscript": torchscript_format}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x).relu()


def saved(kind, folder):
    if kind == "exported":
        exported_format.save(torch.export.export(Net().eval(), (torch.ones(2, 4),)), folder)
    else:
        with torchscript_format.quiet():
            torchscript_format.save(torch.jit.script(Net().eval()), folder)
    return folder / OPENERS[kind].FILE


def flipped(data, generator):
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 8))):
        changed[generator.randrange(len(changed))] = generator.randrange(256)
    if generator.random() < 0.1:
        changed = changed[: generator.randrange(len(changed))]
    return bytes(changed)


def shuffled(files, marker, generator):
    """Members renamed, doubled, exchanged, dropped, added, or replaced by a pickle with code."""
    listed = list(files.items())
    names = [name for name, _ in listed]
    evil = pickled(marker, generator.choice(("pickle", "torch.save")))
    for _ in range(generator.choice((1, 2, 4))):
        place = generator.randrange(len(listed))
        name, data = listed[place]
        other = generator.choice(names)
        listed[place : place + 1] = generator.choice(
            [
                [(name, evil)],
                [(name, data), (name.swapcase(), evil)],
                [(name, data), (other, data)],
                [(other, data)],
                [(name, files[other])],
                [],
                [(name, data), (generator.choice(("extra/x", "x.pkl", "code/x.py", "a/../b")), evil)],
                [(name, flipped(data, generator) if data else data)],
            ]
        ) or [("version", b"3")]
    return listed


def opened(payload: dict[str, str], channel: Channel) -> list[str]:
    """In the worker: open every file of a folder; gives the errors that are none of ours."""
    module, odd = OPENERS[payload["kind"]], []
    marker = Path(payload["marker"])
    for folder in sorted(Path(payload["folder"]).iterdir()):
        try:
            model = module.open(folder)
        except OptcliError:
            continue
        except Exception as error:
            odd.append(f"{folder.name}: {type(error).__name__} {error}")
            continue
        with suppress(Exception):  # weights and shapes may be changed in ways that show when it runs
            (model.module() if payload["kind"] == "exported" else model)(torch.ones(2, 4))
        if marker.exists():
            return [f"{folder.name} ran code"]
    return odd


@pytest.mark.long
@pytest.mark.parametrize("way", ["bytes", "members"])
@pytest.mark.parametrize("kind", OPENERS)
def test_no_changed_archive_runs_code(kind, way, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{Path(__file__).parents[1]}")
    generator = random.Random(f"{kind} {way}")
    path, marker = saved(kind, tmp_path), tmp_path / "marker"
    data, files = path.read_bytes(), members(path)
    for number in range(ROUNDS):
        place = tmp_path / "files" / f"{number:05}" / path.name
        place.parent.mkdir(parents=True)
        if way == "bytes":
            place.write_bytes(flipped(data, generator))
        else:
            written(place, shuffled(files, marker, generator))
    payload = {"kind": kind, "folder": str(tmp_path / "files"), "marker": str(marker)}
    # Not confined: this is about what is unpickled.
    assert run("test_hostile_fuzzing:opened", payload, list[str], timeout_s=300) == []
    assert not marker.exists()
