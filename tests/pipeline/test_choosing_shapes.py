"""Static or dynamic shapes, where the recipe does not say: compared once, then part of the runner."""

import json
import random
import shutil
import statistics

import pytest
from tiny_project import HEAD, Heard, project_in

from optcli.errors import StepError
from optcli.measure.latency import shapes as comparing
from optcli.measure.latency.shapes import ShapeComparison
from optcli.pipeline import places
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.making import Phases, make, planned
from optcli.store import Store

VARIANTS = """\
  plain: []
  openvino: [to_openvino]
"""


@pytest.fixture(scope="module")
def made_once(template, tmp_path_factory):
    """A store with the artifacts of VARIANTS, where nothing was compared."""
    place = tmp_path_factory.mktemp("made")
    project = project_in(place, template)
    project.recipe(VARIANTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places.workers, "run", lambda *_, **__: ShapeComparison({}, False, None))
        assert runners(project)["openvino"].static_gains == {}
    return project.store


@pytest.fixture
def compared(monkeypatch, made_once, project):
    """How many times as fast the static form is said to be; `asked` holds who was compared.

    The project has what was made once.
    """
    shutil.copytree(made_once, project.store)

    class Compared:
        def __init__(self):
            self.ratios, self.refused, self.asked, self.error = {"1": 1.3}, None, [], None
            self.steady = True

        def run(self, function, request, gives, **how):
            assert function == "optcli.measure.latency.shapes:compare"
            self.asked.append(request)
            if self.error:
                raise self.error
            return ShapeComparison(self.ratios, self.steady, self.refused)

    found = Compared()
    monkeypatch.setattr(places.workers, "run", found.run)
    return found


def runners(project, heard=None, **how):
    store = Store(project.store)
    to_do = planned(project.folder / "recipe.yaml", store, (), ())
    made = make(to_do, store, heard or Heard(), BuildSettings(), Phases(), **how)
    return {each.name: each for each in made.plan.variants}


@pytest.mark.slow
def test_what_is_faster_is_chosen_and_remembered(project, compared):
    project.recipe(VARIANTS)
    found = runners(project)["openvino"]
    assert (found.runner.shapes, found.runner.batch_sizes) == ("static", (1,))
    assert found.static_gains == {"1": 1.3}
    count = len(compared.asked)
    assert runners(project)["openvino"].runner.shapes == "static"
    assert len(compared.asked) == count, "it is in the store"
    compared.ratios = {"1": 0.9}
    assert runners(project, remeasure=True)["openvino"].runner.shapes == "dynamic"
    assert len(compared.asked) > count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratios", "chosen"),
    [
        ({"1": 1.01, "4": 1.02}, ("dynamic", None)),
        ({"1": 1.03, "4": 1.02}, ("static", (1, 4))),
        ({"1": 1.2, "4": 0.9}, ("static", (1,))),
        ({"1": 0.99, "4": 1.1}, ("static", (4,))),
        ({"1": 0.8, "4": 0.99}, ("dynamic", None)),
        ({}, ("dynamic", None)),
    ],
)
def test_what_is_compiled_for_must_be_worth_its_memory(project, compared, ratios, chosen):
    project.recipe(VARIANTS, head=HEAD.replace("latency: {", "latency: {batch_sizes: [1, 4], "))
    compared.ratios = ratios
    found = runners(project)["openvino"]
    assert (found.runner.shapes, found.runner.batch_sizes) == chosen
    assert found.static_gains == ratios


@pytest.mark.slow
def test_a_runtime_that_cannot_compile_for_one_size_says_why(project, compared):
    project.recipe(VARIANTS)
    compared.ratios, compared.refused = {}, "its file fixes the batch size"
    heard = Heard()
    assert runners(project, heard)["openvino"].runner.shapes == "dynamic"
    assert any("its file fixes the batch size" in note for note in heard.notes)


@pytest.mark.slow
def test_what_the_recipe_says_is_not_compared(project, compared):
    head = HEAD.replace("latency: {", "latency: {batch_sizes: [1, 4], ")
    project.recipe(
        "  plain: {passes: [], runner: {name: openvino, shapes: static}}\n"
        "  one: {passes: [], runner: {name: openvino, shapes: static, batch_sizes: [2]}}\n"
        "  any: {passes: [], runner: {name: openvino, shapes: dynamic}}\n",
        head=head,
    )
    found = {name: each.runner for name, each in runners(project).items()}
    assert found["plain"].batch_sizes == (1, 4)
    assert found["one"].batch_sizes == (2,)
    assert found["any"].shapes == "dynamic"
    assert not compared.asked


@pytest.mark.slow
def test_a_fixed_batch_leaves_nothing_to_choose(project, compared):
    head = HEAD.replace("[batch, 3, 4, 4], batch: {min: 1, opt: 2, max: 4}", "[1, 3, 4, 4]")
    project.recipe("  plain: {passes: [], runner: openvino}\n", head=head)
    with pytest.MonkeyPatch.context():
        found = runners(project)["plain"]
    assert found.runner.shapes is None
    assert not compared.asked


@pytest.mark.slow
def test_a_comparison_that_fails_costs_nothing_but_itself(project, compared):
    project.recipe(VARIANTS)
    compared.error = StepError("it died")
    heard = Heard()
    assert runners(project, heard)["openvino"].runner.shapes == "dynamic"
    assert any("static shapes failed: it died" in note for note in heard.notes)
    compared.error = None
    assert runners(project)["openvino"].runner.shapes == "static", "the next build compares again"


@pytest.mark.slow
def test_an_unsteady_comparison_decides_nothing_and_is_not_kept(project, compared):
    project.recipe(VARIANTS)
    compared.steady = False
    heard = Heard()
    found = runners(project, heard)["openvino"]
    assert (found.runner.shapes, found.static_gains) == ("dynamic", {})
    assert any("not quiet" in note for note in heard.notes)
    compared.steady = True
    assert runners(project)["openvino"].runner.shapes == "static"


@pytest.mark.slow
def test_batch_sizes_that_the_recipe_names_are_kept(project, compared):
    project.recipe("  plain: {passes: [], runner: {name: openvino, batch_sizes: [2, 4]}}\n")
    assert runners(project)["plain"].runner.batch_sizes == (2, 4)
    assert compared.asked[0].batch_sizes == (2, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "chosen"), [(0.9, "static"), (0.5, "dynamic")])
def test_batch_sizes_that_the_recipe_names_are_compiled_all_or_none(project, compared, ratio, chosen):
    project.recipe("  plain: {passes: [], runner: {name: openvino, batch_sizes: [2, 4]}}\n")
    compared.ratios = {"2": 1.3, "4": ratio}
    found = runners(project)["plain"].runner
    assert (found.shapes, found.batch_sizes) == (chosen, (2, 4))


class Taking:
    """A runner whose calls take so long, and up to `jitter` more, by a clock that only they move."""

    def __init__(self, clock, seconds, jitter, draw):
        self.clock, self.seconds, self.jitter, self.draw = clock, seconds, jitter, draw

    def run(self, feed):
        self.clock[0] += self.seconds * (1 + self.jitter * self.draw.random())


@pytest.mark.parametrize(("jitter", "rounds"), [(0.0, 10), (0.3, 60)])
def test_more_rounds_are_taken_until_the_ratio_is_known(monkeypatch, jitter, rounds):
    clock = [0.0]
    monkeypatch.setattr(comparing.time, "perf_counter", lambda: clock[0])
    draw = random.Random(1)
    static, dynamic = (Taking(clock, seconds, jitter, draw) for seconds in (0.02, 0.022))
    found = comparing._ratios(static, dynamic, [{}])
    assert len(found) == rounds
    assert statistics.median(found) == pytest.approx(1.1, rel=0.1 * bool(jitter) + 1e-9)


@pytest.mark.parametrize(
    ("middle", "spread", "told"),
    [
        (1.0, 0.02, True),  # the two are equally fast, and that is known
        (1.05, 0.02, True),
        (1.0, 0.4, False),  # either could be faster
        (1.1, 0.4, False),
        (1.25, 0.4, True),  # by how much is not known, but which one
        (0.8, 0.3, True),
        (0.95, 0.3, False),
    ],
)
def test_noise_matters_where_the_forms_are_near_each_other(middle, spread, told):
    draw = random.Random(0)
    rounds = [middle * (1 + spread * (draw.random() - 0.5)) for _ in range(25)]
    assert comparing._tell(rounds) == told


@pytest.mark.long
@pytest.mark.slow
def test_a_real_build_says_what_was_compiled(project):
    project.recipe(VARIANTS)
    heard = Heard()
    gains = runners(project, heard)["openvino"].static_gains
    assert set(gains) == {"1"} or any("not quiet" in note for note in heard.notes)
    project.build()
    report = json.loads((project.artifacts / "tiny" / "report.json").read_text())
    found = report["variants"]["openvino"]["runner"]
    if gains:  # kept since
        assert found["static_gains"] == gains
    assert found["shapes"] == found["requested"]["shapes"]
    if found["shapes"] == "static":
        assert found["compiled_batch_sizes"] == [1]
        assert found["compile_ms"]["1"] > 0
