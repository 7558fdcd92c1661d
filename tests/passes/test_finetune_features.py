"""Fine-tuning by the teacher's blocks, and within a limited time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from stripes import IMAGE, Stripes
from tiny_networks import Heard, artifact

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.models.formats import torch as torch_format
from optcli.models.sources.python import PythonSource
from optcli.passes import Job, finetune
from optcli.passes._torch import training
from optcli.passes._torch.examples import ExampleSet
from optcli.passes._torch.learning import Features, caller, matched
from optcli.passes._torch.pace import TrainingBudget
from optcli.passes.finetune import Finetune
from optcli.passes.prune import Prune

pytestmark = pytest.mark.slow

CODE = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.Conv2d(width, 16, 3, padding=1)
            self.norm = nn.BatchNorm2d(16)
            self.outer = nn.Conv2d(16, width, 3, padding=1)

        def forward(self, x):
            return torch.relu(x + self.outer(torch.relu(self.norm(self.inner(x)))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 16, 3, padding=1, stride=2)
            self.stage = nn.Sequential(Block(16), Block(16), Block(16))
            self.drop = nn.Dropout(0.1)
            self.head = nn.Linear(16, 4)

        def forward(self, image):
            return self.head(self.drop(self.stage(self.stem(image)).mean((2, 3))))

    class Parts(nn.Module):
        '''Blocks that lie in no container.'''

        def __init__(self):
            super().__init__()
            self.first, self.second = Block(1), Block(1)
            self.head = nn.Linear(64, 4)

        def forward(self, image):
            return self.head(self.second(self.first(image)).flatten(1))
    """


@pytest.fixture(autouse=True)
def one_thread():
    """So small a network gains nothing from a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def written(folder: Path, name: str = "Net") -> Artifact:
    (folder / "nets.py").write_text(dedent(CODE))
    out = folder / name
    out.mkdir()
    outputs = PythonSource(target=f"nets.py:{name}", folder=folder).write(out, IMAGE).outputs
    return artifact(out, Format.TORCH, outputs=list(outputs))


def job(out: Path, origin: Artifact, data=None, heard=None, scratch=None) -> Job:
    out.mkdir()
    data = data or Stripes()
    return Job(
        out, IMAGE, origin, heard or Heard(), seed=3, scratch=scratch,
        calibration=data, training=data, validation=replace(data, count=64, seed=1),
    )  # fmt: skip


def pruned(source: Artifact, out: Path, **options) -> Artifact:
    Prune(**options).run(source, job(out, source))
    return replace(source, path=out)


def tuned(
    source: Artifact, out: Path, origin: Artifact, *, data=None, scratch=None, heard=None, **options
):
    """The network after fine-tuning, what its facts say of it, and what was heard."""
    work = job(out, origin, data, heard, scratch)
    given = {"epochs": 4, "batch_size": 16, "learning_rate": 0.01, "threads": 1, "autocast": "off"}
    made = Finetune(**{**given, **options}).run(source, work)
    return torch_format.open(out), made.facts["finetuning"], work.observer


def states_equal(one, other) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def callable_of(model):
    return model, caller(model, IMAGE, "cpu")


def distance(student, teacher, names) -> float:
    """Between the blocks of two networks, in evaluation mode."""
    batch = ExampleSet(Stripes(), "training").batch(range(64))
    features = Features(tuple(names), (), 1.0)
    with features.taken(student, teacher), torch.no_grad():
        callable_of(student)[1](batch)
        callable_of(teacher)[1](batch)
        return float(features.loss())


def test_blocks_learn_what_the_teachers_blocks_give(tmp_path):
    untrained = written(tmp_path)
    tuned(untrained, tmp_path / "t", untrained, distillation_weight=0)
    origin = replace(untrained, path=tmp_path / "t")
    source = pruned(origin, tmp_path / "p", remove=("stage.1",))
    teacher, before = torch_format.open(origin.path), torch_format.open(source.path)
    options = {"data": Stripes(labelled=False), "validate_epochs": False}
    model, facts, heard = tuned(source, tmp_path / "b", origin, feature_weight=2.0, **options)
    # What stands for the removed block gives the same tensor as the block before it.
    assert facts["features"] == ["stage.1", "stage.2"]
    assert (facts["feature_weight"], facts["distillation_weight"]) == (2.0, 1.0)
    assert heard.warnings == []
    names = facts["features"]
    assert distance(model, teacher, names) < 0.5 * distance(before, teacher, names)
    without, plain, _ = tuned(source, tmp_path / "c", origin, **options)
    assert "features" not in plain
    assert distance(model, teacher, names) < 0.7 * distance(without, teacher, names)


def test_labels_and_blocks_alone_need_no_answers_of_the_teacher(tmp_path):
    origin = written(tmp_path)
    source = pruned(origin, tmp_path / "p", blocks=1)
    _, facts, _ = tuned(
        source, tmp_path / "b", origin, feature_weight=0.1, distillation_weight=0, epochs=6
    )
    assert facts["distillation_weight"] == 0
    assert len(facts["features"]) == 2
    assert facts["validation_accuracy"] > 0.9


def test_after_width_and_depth_what_differs_in_shape_is_skipped_and_said(tmp_path):
    origin = written(tmp_path)
    narrow = pruned(origin, tmp_path / "p", ratio=0.5, blocks=1, keep=("stem",))
    _, facts, heard = tuned(narrow, tmp_path / "b", origin, feature_weight=1.0, epochs=1)
    assert len(facts["features"]) == 2, "the stream has its width, the hidden layers have not"
    assert heard.warnings == []
    narrower = pruned(origin, tmp_path / "q", ratio=0.5)
    _, facts, heard = tuned(narrower, tmp_path / "c", origin, feature_weight=1.0, epochs=1)
    assert "features" not in facts
    assert heard.warnings == [
        "feature_weight: 3 blocks differ in shape from the teacher's, without a match: "
        "stage.0, stage.1, stage.2",
        "feature_weight: no block can be matched; training without it",
    ]


def test_a_network_has_no_distance_to_itself_and_keeps_no_hooks(tmp_path):
    model = torch_format.open(written(tmp_path, "Parts").path)
    batch = ExampleSet(Stripes(), "training").batch(range(8))
    features = matched(callable_of(model), callable_of(model), batch, 3.0)
    assert features.names == ("first", "second"), "no container holds a block: parts are matched"
    assert distance(model, model, features.names) == 0
    other = torch_format.open(written(tmp_path).path)
    assert matched(callable_of(other), callable_of(model), batch, 3.0).names == ()
    assert not any(module._forward_hooks for module in (*model.modules(), *other.modules()))


class Killed(Heard):
    def progress(self, step, fraction, message):
        if message.startswith("epoch 3 of"):
            raise KeyboardInterrupt


def test_a_killed_training_goes_on_with_its_blocks(tmp_path):
    origin, scratch = written(tmp_path), tmp_path / "scratch"
    source = pruned(origin, tmp_path / "p", blocks=1)
    options = {"feature_weight": 1.0, "reestimate_batchnorm": True}
    whole, facts, _ = tuned(source, tmp_path / "a", origin, **options)
    with pytest.raises(KeyboardInterrupt):
        tuned(source, tmp_path / "b", origin, scratch=scratch, heard=Killed(), **options)
    resumed, same, _ = tuned(source, tmp_path / "c", origin, scratch=scratch, **options)
    assert states_equal(whole, resumed)
    assert same == facts


class Clock:
    """Stands still, but where a training makes it go on."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def slow(monkeypatch):
    """Makes each of the first steps take a second, and those after `after` steps `then`."""
    rates: list[float] = []

    def start(after: int = 10**6, then: float = 1.0, judging: float = 0.0) -> tuple[Clock, list[float]]:
        class Timed(training.Training):
            def _loss_of(self, batch):
                steps[0] += 1
                self.clock.now += 1.0 if steps[0] <= after else then
                return super()._loss_of(batch)

            def _step(self, *rest):
                rates.append(self.optimizer.param_groups[0]["lr"])
                return super()._step(*rest)

            def _judged(self, news):
                self.clock.now += judging
                return super()._judged(news)

        clock, steps = Clock(), [0]
        monkeypatch.setattr(finetune, "Training", partial(Timed, clock=clock))
        rates.clear()
        return clock, rates

    return start


def ended(rates: list[float]) -> bool:
    """Whether the learning rate has risen to its largest and has fallen to next to nothing."""
    return max(rates) > 0.009 and rates[-1] < 0.1 * max(rates) and rates[-1] == min(rates[1:])


def test_as_many_epochs_are_trained_as_fit(tmp_path, slow):
    clock, rates = slow(judging=1.0)
    source = written(tmp_path)
    # The first judgement 1 s, the trial 3 s; an epoch 8 steps and a judgement, planned with 5 % more.
    _, facts, heard = tuned(source, tmp_path / "b", source, epochs=9, max_minutes=0.75)
    assert (facts["epochs"], facts["epochs_that_fit"], facts["max_minutes"]) == (4, 4, 0.75)
    assert not facts["stopped_early"]
    assert clock.now - 100 == 4 + 4 * 9
    assert ended(rates)
    assert len(rates) == 4 * 8
    assert heard.warnings == []
    assert heard.fractions[-1] == 1.0


def test_where_no_epoch_fits_it_has_fewer_steps(tmp_path, slow):
    clock, rates = slow()
    source = written(tmp_path)
    _, facts, _ = tuned(source, tmp_path / "b", source, epochs=9, max_minutes=10 / 60)
    assert (facts["epochs"], len(rates)) == (1, 6)
    assert clock.now - 100 <= 10
    _, rates = slow()
    _, facts, heard = tuned(source, tmp_path / "c", source, epochs=9, max_minutes=2 / 60)
    assert len(rates) == 1
    assert heard.warnings == ["max_minutes is over before the first step: one step is trained"]


def test_where_nothing_is_judged_the_rest_of_the_time_is_used_too(tmp_path, slow):
    clock, rates = slow()
    source = written(tmp_path)
    limits = {"epochs": 9, "max_minutes": 0.7, "validate_epochs": False}
    _, facts, _ = tuned(source, tmp_path / "b", source, **limits)
    # The trial takes 3 s; 4 epochs of 8 steps would leave 7 of 42 s. Five of 7 steps are planned, and
    # four of 8 after the first, which took no longer than its steps do.
    assert (facts["epochs"], facts["epochs_that_fit"]) == (5, 5)
    assert clock.now - 100 == 3 + 7 + 4 * 8
    assert ended(rates)


def test_a_training_that_gets_slower_ends_in_time_with_its_rate_at_the_end(tmp_path, slow):
    clock, rates = slow(after=3 + 8, then=2.0)
    source = written(tmp_path)
    _, facts, _ = tuned(source, tmp_path / "b", source, epochs=6, max_minutes=1)
    # 6 epochs of 8 s are planned; the second takes 16 s; two more fit into the 33 s that are left.
    assert (facts["epochs"], facts["epochs_that_fit"]) == (4, 4)
    assert clock.now - 100 == 3 + 8 + 3 * 16
    assert ended(rates)
    clock, rates = slow(after=3, then=6.0)
    _, facts, heard = tuned(source, tmp_path / "c", source, epochs=6, max_minutes=0.9)
    assert facts["epochs"] == 1
    assert heard.warnings == [
        "max_minutes is over after epoch 1 of 6: it took longer than the first steps had shown"
    ]


def test_an_epoch_that_gets_slower_has_fewer_steps_and_ends_in_time(tmp_path, slow, monkeypatch):
    monkeypatch.setattr(training, "_LOOK_EVERY", 2)
    clock, rates = slow(after=3 + 2, then=3.0)
    source = written(tmp_path)
    _, facts, _ = tuned(source, tmp_path / "b", source, epochs=1, max_minutes=20 / 60)
    # 8 steps of 1 s were planned; from the third on they take 3 s: of 21 s 19 are left, for 6 of them.
    assert facts["epochs"] == 1
    assert 3 < len(rates) < 8
    assert clock.now - 100 <= 20
    assert ended(rates)


def test_time_enough_changes_nothing(tmp_path, slow):
    slow()
    source = written(tmp_path)
    limited, facts, _ = tuned(source, tmp_path / "a", source, max_minutes=60)
    assert facts["epochs_that_fit"] == 4
    free, same, _ = tuned(source, tmp_path / "b", source)
    assert states_equal(limited, free), "the steps that are tried leave no trace"
    assert same["curve"] == facts["curve"]


def test_a_killed_training_keeps_its_time(tmp_path, slow):
    source, scratch = written(tmp_path), tmp_path / "scratch"
    slow()
    whole, facts, _ = tuned(source, tmp_path / "a", source, epochs=9, max_minutes=0.76)
    assert facts["epochs"] == 5
    slow()
    with pytest.raises(KeyboardInterrupt):
        tuned(
            source, tmp_path / "b", source, epochs=9, max_minutes=0.76, scratch=scratch, heard=Killed()
        )
    _, rates = slow()
    resumed, same, heard = tuned(
        source, tmp_path / "c", source, epochs=9, max_minutes=0.76, scratch=scratch
    )
    assert heard.warnings == ["resuming after epoch 2 of 5, where it was stopped"]
    assert len(rates) == 3 * 8
    assert states_equal(whole, resumed)
    assert same == facts


def test_the_key_of_a_limited_training_holds_what_decides_its_pace(monkeypatch):
    monkeypatch.setattr(environment, "cpu", lambda: {"model": "one", "flags": []})
    assert Finetune(threads=2).bound_to() == {"autocast": "off"}
    limited = Finetune(threads=2, max_minutes=3).bound_to()
    assert limited == {"autocast": "off", "cpu": {"model": "one", "flags": []}, "threads": 2}


@pytest.mark.parametrize(
    ("seconds", "spent", "times", "fits"),
    [
        (100, 0, (10, 1, 5), (5, 10)),
        (40, 0, (10, 1, 5), (2, 10)),
        (40, 20, (10, 1, 5), (1, 10)),
        (40, 30, (10, 1, 5), (1, 5)),
        (40, 36, (10, 1, 5), (0, 0)),
        (40, 45, (10, 1, 0), (0, 0)),
        (40, 0, (10, 0, 0), (5, 10)),
        (40, 0, (10, 1, 5, 20), (1, 10)),
        (40, 15, (10, 1, 5, 20), (1, 6)),
    ],
)
def test_what_fits_into_a_budget(seconds, spent, times, fits):
    steps, *rest = times
    budget = TrainingBudget(seconds, spent, clock=Clock())
    assert budget.used_s == spent
    assert budget.fit(5, steps, *rest) == fits
