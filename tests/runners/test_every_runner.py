"""What holds for every runner; a new file in optcli/runners is picked up by itself."""

from __future__ import annotations

import json

import configured
import pytest
from pydantic import ValidationError

from optcli import runners
from optcli.artifact import Format

NAMES = runners.names()


def test_there_are_runners():
    assert {"torch", "aoti", "onnxruntime", "openvino"} <= set(NAMES)


@pytest.mark.parametrize("format", list(runners.DEFAULTS))
def test_the_default_of_a_format_runs_it(format):
    assert format in runners.find(runners.DEFAULTS[format]).runs


@pytest.mark.parametrize("name", NAMES)
def test_it_and_its_options_are_described(name):
    assert configured.undocumented(runners.find(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_options_survive_a_round_trip(name):
    kind = runners.find(name)
    for options in configured.variations(kind):
        assert kind.model_validate_json(options.model_dump_json()) == options
        assert kind.model_validate(json.loads(json.dumps(options.model_dump(mode="json")))) == options


@pytest.mark.parametrize("name", NAMES)
def test_options_are_strict(name):
    with pytest.raises(ValidationError):
        runners.find(name)(no_such_option=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_importing_it_loads_nothing_heavy(name):
    modules = [f"optcli.runners.{each}" for each in NAMES]
    assert configured.loaded_by(*modules)[f"optcli.runners.{name}"] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_formats(name):
    runs = runners.find(name).runs
    assert runs, "it runs nothing"
    assert all(isinstance(format, Format) for format in runs)
    assert len(set(runs)) == len(runs)


@pytest.mark.parametrize("name", NAMES)
def test_threads_are_set_before_its_library_is_loaded(name):
    kind = runners.find(name)
    assert kind().thread_count() >= 1
    assert kind(threads=3).thread_count() == 3
    variables = kind(threads=3).environment()
    assert variables["OMP_NUM_THREADS"] == "3"
    assert all(isinstance(value, str) for value in variables.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_uses_it_or_it_is_a_default(name):
    assert name in runners.DEFAULTS.values() or name in configured.options_in_recipes()
