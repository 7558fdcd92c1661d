"""What a person sees while a search runs."""

import time

from optcli.observer import Observer
from optcli.report.tuning import points
from optcli.results import Estimate
from optcli.results.tuning import TuningTrial
from optcli.tuning.display import Display


class Seen(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.live = ""

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        self.live = f"{step} {message}"

    def finished(self, step: str, seconds: float) -> None:
        self.lines.append(f"{step} ({seconds:.0f} s)")

    def failed(self, step: str, reason: str) -> None:
        self.lines.append(f"failed {step}: {reason}")

    def warned(self, step: str, message: str) -> None:
        self.lines.append(f"note {step}: {message}")


def trial(number: int, **more: object) -> TuningTrial:
    return TuningTrial.model_validate(
        {
            "number": number,
            "label": "openvino int8",
            "why": "",
            "parameters": {},
            "passes": (),
            "seconds": 12.0,
            **more,
        }
    )


def test_the_best_the_time_left_what_is_tried_and_why_are_shown() -> None:
    seen = Seen()
    display = Display(seen, time.monotonic() + 600)
    display.begins(3, "openvino int8", "a rule of thumb", None)
    assert seen.lines == ["note tune: trial 3: openvino int8: a rule of thumb"]
    assert "none inside the bar yet" in seen.live
    best = trial(1, stage="inside", score=Estimate(value=1.7))
    display.begins(4, "onnxruntime int8", "another", best)
    display.started("trial-4 › export_onnx")
    assert "best: 1.70 times the reference (trial 1)" in seen.live
    assert "trial 4: onnxruntime int8" in seen.live
    assert "export_onnx" in seen.live
    assert "left" in seen.live


def test_the_end_of_a_trial_is_a_line() -> None:
    seen = Seen()
    display = Display(seen, time.monotonic() + 600)
    good = trial(3, stage="inside", score=Estimate(value=1.7), loss=Estimate(value=0.002))
    display.ends(good)
    display.ends(trial(4, stage="failed", reason="no such kernel"))
    assert seen.lines == [
        "tune: trial 3: openvino int8, 1.70 times the reference, 0.20 points lost, inside the bar"
        " (12 s)",
        "failed tune: trial 4: openvino int8: no such kernel",
    ]


def test_a_loss_that_rounds_to_nothing_has_no_sign() -> None:
    seen = Seen()
    display = Display(seen, time.monotonic() + 600)
    display.ends(trial(0, stage="inside", loss=Estimate(value=-1e-9)))
    assert "-0.00" not in seen.lines[0]
    assert "0.00 points lost" in seen.lines[0]
    assert points(-1e-9) == "0.00"
