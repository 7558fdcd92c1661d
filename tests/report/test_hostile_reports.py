"""Reports as somebody may have edited them: compared or refused, never a traceback."""

from __future__ import annotations

import copy
import json
import os
import random
from typing import Any

import pytest
from example import report

from optcli import cli
from optcli.errors import UsageError
from optcli.results import Report

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 3000, "\0", [], {}, [[]],
    {"a": {}}, "0.5", [1, "x", None], -0.5, "\ud800", "[red]x[/]", "<script>",
)  # fmt: skip
ROUNDS = int(os.environ.get("OPTCLI_FUZZ_ROUNDS", "60"))  # `make nightly` tries more
FORMS = ("terminal", "markdown", "json", "csv", "html")


@pytest.fixture
def good(tmp_path):
    """A report on disk, and what it says."""
    path = tmp_path / "good.json"
    path.write_text(report().to_json())
    return path, json.loads(path.read_text())


def _places(value: Any) -> Any:
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_any_mutation_is_shown_or_refused(good, tmp_path, capsys, seed):
    path, record = good
    draw = random.Random(seed)
    record = copy.deepcopy(record)
    for _ in range(draw.choice((1, 1, 2, 3))):
        holder, key = draw.choice(list(_places(record)))
        way = draw.random()
        if way < 0.5:  # a value of the same type gets further
            alike = [each for each in HOSTILE if type(each) is type(holder[key])]
            holder[key] = draw.choice(alike or HOSTILE)
        elif way < 0.75:
            holder[key] = draw.choice(HOSTILE)
        elif way < 0.9:
            del holder[key]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[f"{key}x"] = holder.pop(key)
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(record))
    form = draw.choice(FORMS)
    for arguments in ([bad], [path, bad], [bad, path, "--force"]):
        code = cli.run(["compare", *map(str, arguments), "--format", form])
        assert code in range(6), capsys.readouterr().err
        assert len(capsys.readouterr().err) < 3000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"protocol": {"threads": float("nan")}}, "found NaN, wanted finite numbers"),
        ({"protocol": {"launches": -1}}, "protocol.launches: found -1, wanted at least 0"),
        ({"protocol": {"x": {"batch_size": 0}}}, "protocol.x.batch_size: found 0, wanted at least 1"),
        ({"protocol": 5}, "protocol: Input should be"),
        ({"exit_code": -1}, "exit_code: Input should be greater than or equal to 0"),
        ({"exit_code": 70}, "exit_code: Input should be less than or equal to 5"),
        ({"took_s": {"data": 10**30}}, "more than 64 bits"),
    ],
)
def test_values_that_no_build_writes(good, change, says):
    path, record = good
    path.write_text(json.dumps({**record, **change}))
    with pytest.raises(UsageError, match=says):
        Report.load(path)


def test_reports_that_are_no_files(good, tmp_path):
    path, _ = good
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UsageError, match="found a pipe"):
        Report.load(tmp_path / "pipe.json")
    for text in ("[" * 100_000, '{"took_s": ' + "9" * 6000 + "}", '{"took_s": {"data": 1e999}}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="not a readable report"):
            Report.load(path)
