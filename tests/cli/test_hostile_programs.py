"""Two files that only compute, and would write outside their memory: what verbs do with them."""

from __future__ import annotations

import shutil

import pytest
from hostile_archives import members, written

from optcli.errors import ExitCode

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.long]

RECIPE = """\
version: 1
name: hostile
model: {{source: "{source}"}}
inputs:
  - {{name: x, dtype: float32, shape: [batch, 3, 8, 8], batch: {{min: 1, opt: 2, max: 8}}}}
latency: {{launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.05, threads: 1}}
variants:
  {variants}
"""


class Scatter(torch.nn.Module):
    """From batch 4 on it scatters 4 MB behind its buffer; a graph of `aten` alone."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def forward(self, x):
        batch = x.shape[0]
        view = torch.ops.aten.as_strided_scatter.default
        return view(x, x[0, 0, 0], [8], [1], (batch // 4) * self.step).flatten(1)


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(12_345))

    def forward(self, x):
        return x.flatten(1) + self.weight.sum()


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    example = (torch.ones(2, 3, 8, 8),)
    # torch checks the place where it is traced, so it is traced with one that fits.
    exported = torch.export.export(Scatter(100), example, dynamic_shapes=shapes)
    torch.export.save(exported, "sound.pt2")
    files = members(tmp_path / "sound.pt2")
    graph = files["models/model.json"]
    assert graph.count(b"100") >= 1
    files["models/model.json"] = graph.replace(b'"as_int": 100}', b'"as_int": 1000000}').replace(
        b"100*", b"1000000*"
    )
    assert files["models/model.json"] != graph
    return written(tmp_path / "model.pt2", files)


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.jit.save(torch.jit.script(Plain()), "sound.pt")
    files = members(tmp_path / "sound.pt")
    honest = b"M" + (12_345).to_bytes(2, "little")
    assert honest in files["data.pkl"]
    lying = b"J" + (10_000_000).to_bytes(4, "little")
    files["data.pkl"] = files["data.pkl"].replace(honest, lying)
    return written(tmp_path / "model.pt", files)


def recipe(source, variants="plain: []"):
    with open("recipe.yaml", "w") as file:
        file.write(RECIPE.format(source=source, variants=variants))
    return "recipe.yaml"


def test_a_program_that_scatters_behind_its_buffer_is_not_compiled_unasked(program, optcli):
    for variants in (
        "fast: [aot_inductor]",
        "fast: {passes: [], runner: {name: torch, compile: true}}",
    ):
        said = optcli("build", recipe("exported:model.pt2", variants))
        assert said.code == ExitCode.WRONG_RECIPE, said.err
        assert "a program from elsewhere in a worker that cannot be confined" in said.err
        assert "compiler" in said.err
        assert "--trust" in said.err


def test_nor_does_it_get_anywhere_in_workers_that_read(program, optcli):
    """Where it is not compiled, torch itself checks the place, and says so."""
    batches = ("--batch-size", "1", "--batch-size", "4", "--threads", "1")
    said = optcli("bench", program, *batches)
    assert said.code not in (0, ExitCode.BUG), said.err
    assert "out of bounds" in said.out + said.err


def test_nor_in_what_infer_starts(program, optcli, tmp_path):
    said = optcli("build", recipe("exported:model.pt2"))
    assert said.code == 0, said.err  # of one image each
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"x")
    line = ("infer", "plain", "--input", "images", "--output", "answers", "--raw")
    said = optcli(*line, "--batch-size", "4")
    assert said.code not in (0, ExitCode.BUG), said.err
    assert "out of bounds" in said.err


def test_a_storage_that_claims_more_than_its_record_costs_its_worker(script, optcli):
    lines = [("build", recipe("torchscript:model.pt")), ("bench", script, "--trust")]
    lines += [("init", script, "--out", "new.yaml")]
    for line in lines:
        said = optcli(*line)
        assert said.code not in (0, ExitCode.BUG), said.err
        assert "crashed" in said.err


def test_nor_does_infer_open_it_in_a_build_that_was_changed(script, optcli, tmp_path):
    """The lying file lies in the place of the one that an honest build wrote, its digest corrected."""
    import json

    from optcli.files import digest

    shutil.copy("sound.pt", "model.pt")
    said = optcli("build", recipe("torchscript:model.pt"))
    assert said.code == 0, said.err
    place = tmp_path / "artifacts" / "hostile" / "plain"
    (place / "model.pt").unlink()
    written(place / "model.pt", members_of_lying(tmp_path))
    about = json.loads((place / "artifact.json").read_text())
    about["digest"] = digest.of_value([["model.pt", digest.of_file(place / "model.pt")]])
    (place / "artifact.json").write_text(json.dumps(about))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"x")
    said = optcli("infer", "plain", "--input", "images", "--output", "answers", "--raw")
    assert said.code not in (0, ExitCode.BUG), said.err
    assert "crashed" in said.err


def members_of_lying(folder):
    files = members(folder / "sound.pt")
    honest, lying = b"M" + (12_345).to_bytes(2, "little"), b"J" + (10_000_000).to_bytes(4, "little")
    return {**files, "data.pkl": files["data.pkl"].replace(honest, lying)}
