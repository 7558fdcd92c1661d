"""Workers start before the recipe is read where there is everything to do, and nowhere else."""

import pytest
from tiny_project import DATA

from optcli.cli import early_workers
from optcli.pipeline import orders
from optcli.store import Store
from optcli.workers import early, environment_of_steps, parent


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
    assert early_workers.GROUND == orders.GROUND


def test_one_waits_for_a_build_with_an_empty_store(tmp_path, started, cores):
    cores(2)
    with early_workers.early_workers(Store.of(tmp_path)):
        server = early.taken(environment_of_steps(2))
        assert server is not None
        server.close()
    assert started == [early_workers.GROUND]


def test_none_waits_where_there_may_be_nothing_to_do_or_no_core(tmp_path, started, cores):
    cores(1)
    with early_workers.early_workers(Store.of(tmp_path)):
        assert early._waiting == []
    cores(2)
    (tmp_path / "entries").mkdir()
    with early_workers.early_workers(Store.of(tmp_path)):
        assert early._waiting == []
    remote = Store.at(tmp_path / "store", (tmp_path / "remote").as_uri())
    with early_workers.early_workers(remote):
        assert early._waiting == []
    assert started == []


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
    assert early._waiting == []
    again = optcli(*arguments)  # there is nothing to do
    assert (again.code, len(started)) == (0, servers)


def test_it_ends_where_the_recipe_is_wrong(place, optcli, started, cores, tmp_path):
    cores(2)
    (place.folder / "recipe.yaml").write_text("version: 1\nnaem: wrong\n")
    assert optcli("build", "recipe.yaml", "--store", tmp_path / "new").code == 2
    assert (len(started), early._waiting) == (1, [])
