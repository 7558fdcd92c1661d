"""What holds for every pass; a new file in optcli/passes is picked up by itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import configured
import pytest
from pydantic import ValidationError

from optcli import passes
from optcli.artifact import Format
from optcli.files import registry
from optcli.passes import Traits
from optcli.workers import messages

NAMES = registry.names("optcli.passes")


def test_there_are_passes_and_each_is_found_by_its_file_name():
    assert {"export", "export_onnx", "to_openvino", "quantize_nncf", "prune", "aot_inductor"} <= set(
        NAMES
    )
    assert set(NAMES) <= set(passes.names())


@pytest.mark.parametrize("name", NAMES)
def test_it_and_its_options_are_described(name):
    assert configured.undocumented(passes.find(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_options_survive_a_round_trip(name):
    kind = passes.find(name)
    for options in configured.variations(kind):
        assert kind.model_validate_json(options.model_dump_json()) == options
        assert kind.model_validate(json.loads(json.dumps(options.model_dump(mode="json")))) == options


@pytest.mark.parametrize("name", NAMES)
def test_options_are_strict_and_frozen(name):
    kind = passes.find(name)
    options = next(configured.variations(kind))
    with pytest.raises(ValidationError):
        kind(**{**options.model_dump(), "no_such_option": 1})
    with pytest.raises(ValidationError):
        options.no_such_option = 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_importing_it_loads_nothing_heavy(name):
    modules = [f"optcli.passes.{each}" for each in NAMES]
    assert configured.loaded_by(*modules)[f"optcli.passes.{name}"] == []


@pytest.mark.parametrize("name", NAMES)
def test_what_it_accepts_and_produces_are_formats_that_there_are(name):
    for options in configured.variations(passes.find(name)):
        assert options.accepts, "it accepts nothing"
        assert len(set(options.accepts)) == len(options.accepts)
        for source in options.accepts:
            made = options.produces(source)
            assert isinstance(source, Format)
            assert isinstance(made, Format)
            for each in (source, made):
                assert importlib.util.find_spec(f"optcli.models.formats.{each.value}"), (
                    f"no formats/{each.value}.py"
                )


@pytest.mark.parametrize("name", NAMES)
def test_attempts_make_the_same_format(name):
    for options in configured.variations(passes.find(name)):
        assert options.attempts(), "it tries nothing"
        for attempt in options.attempts():
            for source in options.accepts:
                assert source in attempt.accepts
                assert attempt.produces(source) == options.produces(source)


@pytest.mark.parametrize("name", NAMES)
def test_its_declarations_are_sound_and_survive_a_round_trip(name):
    for options in configured.variations(passes.find(name)):
        assert set(options.roles()) <= set(options.uses) <= {"calibration", "training", "validation"}
        assert options.tolerance is None or 0 < options.tolerance < 1
        traits = Traits.of(options, name, code="c0de")
        assert messages.read(Traits, json.loads(json.dumps(messages.to_record(traits)))) == traits


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_recipe_uses_it(name):
    assert name in configured.options_in_recipes(), f"no recipe below recipes/ uses {name}"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted on Linux")
def test_what_is_imported_ahead_is_there_and_starts_no_thread():
    """The server that imports it forks: a fork has none of the threads, and may wait for them."""
    kinds = {name: passes.find(name) for name in NAMES}
    ahead = {name: (kind.needs.packages, kind.imports_ahead) for name, kind in kinds.items()}
    code = f"""\
import importlib, os
for name, (packages, ahead) in {ahead!r}.items():
    if ahead:
        for each in packages:
            importlib.import_module(each)
        before = len(os.listdir("/proc/self/task"))
        for each in ahead:
            importlib.import_module(each)
        assert len(os.listdir("/proc/self/task")) == before, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_what_only_sources_of_a_format_need_is_said_of_formats_that_the_pass_reads(name):
    kind = passes.find(name)
    assert kind.needs_of_source.keys() <= {*kind.accepts}
    for source in kind.accepts:
        if source in (Format.ONNX, Format.OPENVINO):
            more = kind.needs_of_source.get(source, ())
            assert not {"torch", "torchao"} & {*kind.needs.packages, *more}, source


def test_a_pass_needs_what_the_format_that_it_reads_takes():
    traits = Traits.of(passes.find("weights_only")(), "weights_only")
    assert traits.reading(Format.TORCH).needs.packages == ("torch", "torchao")
    assert traits.reading(Format.OPENVINO).needs.packages == ("nncf", "onnx", "openvino")
    assert traits.reading(Format.TORCH).reading(Format.ONNX).needs.packages == ("torch", "torchao")
    said = passes.packages_in_words(passes.find("quantize_dynamic"))
    assert said[0] == "torch (for torch)"
