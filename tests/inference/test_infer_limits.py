"""What the summary of `optcli infer` names as the limit, and which figures stand beside it."""

from typing import Any

import pytest

from optcli import inference
from optcli.report.inference_text import lines
from optcli.results.inference import Inference, Limit


@pytest.mark.parametrize(
    ("waited", "computed", "preparing_s", "read_s", "limit"),
    [
        (0.05, 0.92, 2.0, 1.0, "model"),
        (0.20, 0.75, 2.0, 1.0, "preparing"),
        (0.20, 0.75, 1.0, 2.0, "reading"),
        (0.10, 0.60, 2.0, 1.0, "answers"),
        (None, None, 0.0, 0.0, None),
    ],
)
def test_the_limit_is_what_takes_the_time(
    waited: float | None,
    computed: float | None,
    preparing_s: float,
    read_s: float,
    limit: Limit | None,
) -> None:
    assert inference._limit(waited, computed, preparing_s, read_s) == limit


def result(**more: Any) -> Inference:
    about = {"variant": "int8", "input": "in", "output": "out", "form": "jsonl", "images": 20}
    about |= {"shards": 2, "shards_before": 0, "answered": 20, "batch_size": 8, "rates": {8: 50.0}}
    about |= {"workers": 1, "threads": 2, "seconds": 3.0, "images_per_s": 40.0}
    return Inference.model_validate({**about, **more})


def test_the_summary_says_what_the_limit_is() -> None:
    shares = {"waited_share": 0.2, "computed_share": 0.75, "prepared_share": 0.19}
    text = "\n".join(lines(result(limit="preparing", **shares)))
    assert "decoding and preparing images is the limit" in text
    assert "computed for 75 % and waited for images for 20 %" in text
    assert "decoding and preparing took 19 % of the time of their cores" in text
    assert "reading images from storage is the limit" in "\n".join(
        lines(result(limit="reading", **{**shares, "prepared_share": 0.0}))
    )
    assert "is the limit" not in "\n".join(lines(result()))
