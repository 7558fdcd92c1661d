"""Workers start before the recipe is read where there is everything to do, and nowhere else."""

import os
from pathlib import Path

import pytest
from tiny_project import DATA

from optcli import workers
from optcli.cli import build as early_workers
from optcli.models import sources
from optcli.pipeline import messages
from optcli.store import Store
from optcli.workers import environment_of_steps, parent

# The look at its text is no reason to fail: reading it says what is wrong.
NO_RECIPE = Path("no such recipe.yaml")


@pytest.fixture
def started(monkeypatch):
    """The preloads of the servers that this process starts."""
    preloads: list[tuple[str, ...]] = []
    usual = parent.ForkServer.__init__

    def noted(server, preload, environment=None):
        preloads.append(tuple(preload))
        usual(server, preload, environment)

    monkeypatch.setattr(parent.ForkServer, "__init__", noted)
    return preloads


@pytest.fixture
def cores(monkeypatch):
    """Sets how many cores there seem to be."""
    return lambda count: monkeypatch.setattr(early_workers, "usable_cores", lambda: count)


def test_the_ground_is_that_of_every_worker():
    assert early_workers.GROUND == messages.GROUND


def test_one_waits_for_a_build_with_an_empty_store(tmp_path, started, cores):
    cores(2)
    with early_workers.early_workers(Store.of(tmp_path), NO_RECIPE):
        server = workers.take_early_server(environment_of_steps(2))
        assert server is not None
        server.close()
    assert started == [early_workers.GROUND]


def test_none_waits_where_there_may_be_nothing_to_do_or_no_core(tmp_path, started, cores):
    cores(1)
    with early_workers.early_workers(Store.of(tmp_path), NO_RECIPE):
        assert workers._early_servers == []
    cores(2)
    (tmp_path / "entries").mkdir()
    with early_workers.early_workers(Store.of(tmp_path), NO_RECIPE):
        assert workers._early_servers == []
    remote = Store.at(tmp_path / "store", (tmp_path / "remote").as_uri())
    with early_workers.early_workers(remote, NO_RECIPE):
        assert workers._early_servers == []
    assert started == []


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "servers"), [(2, 1), (1, 2)])
def test_a_build_takes_it_where_it_has_as_many_threads(
    place, optcli, started, cores, tmp_path, threads, servers
):
    cores(2)
    place.recipe("  plain: []\n", data=DATA)
    store = ("--store", tmp_path / "new")
    arguments = ("build", "recipe.yaml", *store, "--set", f"latency.threads={threads}")
    assert optcli(*arguments).code == 0
    assert len(started) == servers
    assert started[0] == early_workers.GROUND
    assert workers._early_servers == []
    again = optcli(*arguments)  # there is nothing to do
    assert (again.code, len(started)) == (0, servers)


def test_the_sources_that_need_pytorch_are_known():
    needing = {name for name in sources.names() if "torch" in sources.find(name).needs.packages}
    assert set(early_workers.TORCH_SOURCES) == needing


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ('model: {source: "torchvision:resnet50"}', ("torch",)),
        ("model:\n  source: python:nets.py:Net\n", ("torch",)),
        ("model:\n  'source' : 'timm:resnet18'\n", ("torch",)),
        ('{"model": {"source": "exported:net.pt2"}}', ("torch",)),
        ("model: {source: onnx:net.onnx}", ()),
        ("data: {calibration: {source: images:folder}}", ()),
        ("model: {resource: timm:x}", ()),
        ("", ()),
    ],
)
def test_pytorch_is_imported_early_where_the_text_names_such_a_source(
    tmp_path, started, cores, text, modules
):
    cores(2)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with early_workers.early_workers(Store.of(tmp_path / "store"), recipe):
        pass
    assert started == [(*early_workers.GROUND, *modules)]


@pytest.mark.parametrize("kind", ["folder", "pipe", "absent"])
def test_what_is_no_file_is_not_looked_into(tmp_path, started, cores, kind):
    cores(2)
    recipe = tmp_path / "recipe.yaml"
    if kind == "folder":
        recipe.mkdir()
    elif kind == "pipe":
        os.mkfifo(recipe)
    with early_workers.early_workers(Store.of(tmp_path / "store"), recipe):
        pass
    assert started == [early_workers.GROUND]


def test_it_ends_where_the_recipe_is_wrong(place, optcli, started, cores, tmp_path):
    cores(2)
    (place.folder / "recipe.yaml").write_text("version: 1\nnaem: wrong\n")
    assert optcli("build", "recipe.yaml", "--store", tmp_path / "new").code == 2
    assert (len(started), workers._early_servers) == (1, [])
