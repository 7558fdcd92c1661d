"""How trials follow each other: when they stop, which is chosen, what cannot be repaired."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiny_project import DATA, HEAD, write_images, write_model

from optcli import tuning
from optcli.errors import UsageError
from optcli.observer import Silent
from optcli.pipeline import report_files
from optcli.report import repair as of_repair
from optcli.report import terminal
from optcli.results import Estimate, RecipeSummary, Report, VariantReport
from optcli.results.tuning import Repair, Trial
from optcli.tuning import repairing as room
from optcli.tuning.layers import NetworkOperator
from optcli.tuning.repairing import Proposals

LAYERS = [NetworkOperator(f"conv{i}", "Conv", (f"t{i}",), (f"t{i + 1}",)) for i in range(8)]
FIRST = Trial(number=0, label="as it is", options={}, value=0.1, operators=8, seconds=1.0)


def proposals() -> Proposals:
    return Proposals("quantize_onnxruntime", {"method": "minmax"}, LAYERS, [x.name for x in LAYERS])


class Simulated:
    """Trials that are inside from a number on, with these speed-ups."""

    def __init__(self, inside_from: int = 99, speedups: tuple[float, ...] = ()) -> None:
        self.inside_from, self.speedups = inside_from, list(speedups)

    def attempt(self, number: int, label: str, changed: dict[str, Any], first: Trial) -> Trial:
        inside = number >= self.inside_from
        speed = self.speedups.pop(0) if inside and self.speedups else 0.9
        ratio = Estimate(value=speed, low=speed - 0.05, high=speed + 0.05) if inside else None
        return Trial(
            number=number,
            label=label,
            options=changed,
            inside=inside,
            value=0.2,
            speedup=ratio,
            seconds=1.0,
        )


def search(
    repairs: Simulated, trials: int = 12, until: float = float("inf")
) -> tuple[list[Trial], str]:
    return room.search(repairs, proposals(), FIRST, trials, until, Silent())


def test_the_number_of_trials_is_kept() -> None:
    done, why = search(Simulated(), trials=5)
    assert [each.number for each in done] == [0, 1, 2, 3, 4, 5]
    assert why == "all 5 trials are used up"


def test_no_trial_begins_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(room.time, "monotonic", lambda: next(clock))
    done, why = search(Simulated(), until=3)
    assert len(done) == 1 + 3
    assert why == "the time is used up, after 3 trials"


def test_it_stops_at_the_first_that_is_right_and_faster() -> None:
    done, why = search(Simulated(inside_from=3, speedups=(0.9, 1.04, 1.2)))
    assert [each.number for each in done] == [0, 1, 2, 3, 4, 5], "1.04 may be 0.99"
    assert done[-1].pays
    assert why == "it is inside the bar and faster than in float"


def recipe(folder: Path, variants: str, data: str = DATA) -> Path:
    write_images(folder / "images")
    write_model(folder / "model.onnx")
    path = folder / "recipe.yaml"
    path.write_text(f"{HEAD}{data}variants:\n  plain: []\n{variants}")
    return path


INT8 = "  int8: [quantize_onnxruntime]   # static\n"


class Carried:
    """Stands for `Repairs`: the variant is outside, the second trial inside and faster."""

    options: ClassVar[dict[str, Any]] = {"method": "minmax", "ignored_names": []}
    runner_name = "onnxruntime"
    inside = False

    def __init__(self, *_: object) -> None:
        self.trials = Simulated(inside_from=2, speedups=(1.5,))

    def first(self) -> tuple[Trial, None, None, Any]:
        from optcli.results import Accuracy

        judged = Accuracy.model_construct(metric="top1", baseline=0.9, better="higher")
        return FIRST.model_copy(update={"inside": self.inside}), None, None, judged

    def attempt(self, *given: Any) -> Trial:
        return self.trials.attempt(*given)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "Repairs", Carried)
    monkeypatch.setattr(room, "layers_of", lambda *_: LAYERS)


def repaired(path: Path, variant: str | None = "int8", **more: Any) -> Repair:
    folder = path.parent
    return tuning.repair(
        path, variant, store=folder / "s", artifacts=folder / "a", ranking=lambda *_: [], **more
    )


@pytest.mark.usefixtures("simulated")
def test_the_patch_is_the_chosen_trials_and_is_applied_when_asked(tmp_path: Path) -> None:
    path = recipe(tmp_path, INT8)
    before = path.read_text()
    found = repaired(path)
    assert (found.variant, found.outcome, found.chosen, found.written) == ("int8", "repaired", 2, False)
    assert path.read_text() == before
    assert "+  int8: [{quantize_onnxruntime: {" in found.patch
    assert "# static" in found.patch
    assert repaired(path, write=True).written
    assert path.read_text() != before
    use = room.load(path).variants["int8"].passes[0]
    assert found.best is not None
    assert use.options == found.best.options


@pytest.mark.usefixtures("simulated")
def test_the_text_has_every_trial_and_what_it_costs(tmp_path: Path) -> None:
    text = terminal.text(of_repair.document(repaired(recipe(tmp_path, INT8))))
    assert "Trial 2 (" in text
    assert "1.50x [1.45, 1.55] as fast as in float" in text
    rows = [line.split()[0] for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert rows == ["0", "1", "2"]
    assert "--write applies it" in text


@pytest.mark.usefixtures("simulated")
def test_one_that_is_inside_already_is_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Carried, "inside", True)
    with pytest.raises(UsageError, match="int8 is inside its accuracy bar already"):
        repaired(recipe(tmp_path, INT8))


@pytest.mark.parametrize(
    ("variants", "variant", "says"),
    [
        ("", None, "no variant is quantized"),
        (f"{INT8}  more: [quantize_nncf]\n", None, "no variant to start at is named"),
        (INT8, "int9", "no variant 'int9'"),
        (INT8, "plain", "plain is the baseline"),
        (f"{INT8}  slim: [optimize_onnx]\n", "slim", "slim has no quantizing pass"),
    ],
)
def test_what_cannot_be_repaired_is_said(
    tmp_path: Path, variants: str, variant: str | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        repaired(recipe(tmp_path, variants), variant=variant)


def test_without_a_bar_there_is_nothing_to_get_inside_of(tmp_path: Path) -> None:
    data = DATA.partition("accuracy:")[0]
    with pytest.raises(UsageError, match="the recipe judges no accuracy"):
        repaired(recipe(tmp_path, INT8, data))


@pytest.mark.usefixtures("simulated")
def test_every_trial_is_in_the_report_of_the_last_build(tmp_path: Path) -> None:
    path = recipe(tmp_path, INT8)
    variants = {name: VariantReport(status="built") for name in ("plain", "int8")}
    report = Report(
        recipe=RecipeSummary(name="tiny", path=str(path), digest=""),
        environment={},
        baseline="plain",
        recommended=None,
        recommendation="",
        started="",
        finished="",
        exit_code=1,
        variants=variants,
    )
    kept = tmp_path / "a" / "tiny" / "report.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(report.to_json())
    found = repaired(path)
    after = Report.load(kept).variants
    assert "int8: repaired by trial 2" in kept.with_name("report.md").read_text()
    assert "int8: repaired by trial 2" in kept.with_name("report.html").read_text()
    assert after["int8"].repair == found
    assert after["plain"].repair is None


def test_trials_lie_in_no_report_where_nothing_was_built(tmp_path: Path) -> None:
    report_files.add(tmp_path, {"int8": {"repair": None}}, Silent())
    assert list(tmp_path.iterdir()) == []
