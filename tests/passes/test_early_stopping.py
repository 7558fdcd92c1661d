"""Trainings that end early: they have reached their aim, or will not; held-out samples say so."""

from dataclasses import dataclass, replace

import pytest
from stripes import Stripes, changed, states_equal, tuned, written
from tiny_networks import Heard

from optcli.passes._torch.examples import ExampleSet
from optcli.passes._torch.pace import EarlyStopping, ending_steps
from optcli.passes._torch.training import schedule

pytestmark = pytest.mark.slow

MANY = 20
DATA = Stripes(160)


@pytest.fixture
def origin(tmp_path):
    """A network that is right on all stripes."""
    source = written(tmp_path)
    tuned(source, tmp_path / "taught", distillation_weight=0, epochs=6)
    return replace(source, path=tmp_path / "taught")


@pytest.fixture
def damaged(origin, tmp_path):
    """It answers one class, and learns the others again in a few epochs."""
    return changed(origin, tmp_path / "damaged", lambda m: m.inner.weight.mul_(0).add_(0.01))


def test_it_ends_once_it_is_as_good_as_its_teacher(origin, damaged, tmp_path):
    limits = {"epochs": MANY, "stop_at_drop": 0.0, "validate_epochs": False}
    _, facts, heard = tuned(damaged, tmp_path / "b", origin=origin, data=DATA, **limits)
    stopping = facts["early_stopping"]
    assert facts["stopped_early"]
    assert facts["epochs"] < MANY // 2
    assert (stopping["held_out"], facts["training_samples"]) == (16, 144)
    assert stopping["teacher"] == 1.0
    *before, last = stopping["looks"]
    assert last["lost"] == 0.0
    assert all(look["lost"] > 0.0 for look in before)
    assert stopping["why"] == (
        "it has reached its aim: 0.0 points lost on 16 samples held out of the training, 0 may be lost"
    )
    # The last epoch is the one in which the rate falls to zero.
    assert facts["curve"][-1]["loss"] < facts["curve"][1]["loss"]
    assert heard.fractions[-1] == 1.0


def test_epochs_of_one_step_are_looked_at_too(origin, damaged, tmp_path):
    limits = {"epochs": 40, "stop_at_drop": 0.0, "validate_epochs": False, "batch_size": 160}
    _, facts, _ = tuned(damaged, tmp_path / "b", origin=origin, data=DATA, **limits)
    assert facts["early_stopping"]["looks"]
    assert facts["curve"][-1]["loss"] > 0.0


def test_it_ends_where_it_will_not_come_there(origin, damaged, tmp_path):
    limits = {"epochs": MANY, "give_up_at_drop": 0.1, "learning_rate": 1e-6, "validate_epochs": False}
    _, facts, _ = tuned(damaged, tmp_path / "b", origin=origin, data=DATA, **limits)
    looks = facts["early_stopping"]["looks"]
    assert looks[-1]["share"] == pytest.approx(0.5, abs=0.02), "not before half of it"
    assert facts["epochs"] < 0.7 * MANY
    assert "it will not reach its aim" in facts["early_stopping"]["why"]


def test_one_that_is_not_stopped_trains_as_without_looking_but_for_what_is_held_out(
    origin, damaged, tmp_path
):
    """Looking leaves the network, and the random numbers of its dropout, as they are."""
    limits = {"epochs": 4, "give_up_at_drop": 1.0, "validate_epochs": False, "held_out": 1}
    looked, facts, _ = tuned(damaged, tmp_path / "b", origin=origin, data=DATA, **limits)
    assert len(facts["early_stopping"]["looks"]) > 10
    assert facts["early_stopping"]["why"] is None
    assert not facts["stopped_early"]
    del limits["give_up_at_drop"], limits["held_out"]
    rest = _Without(159, held=tuple(ExampleSet(DATA, "training").divided(1)[1]._chosen))
    plain, _, _ = tuned(damaged, tmp_path / "c", origin=origin, data=rest, **limits)
    assert states_equal(looked, plain)


def test_held_out_samples_are_not_among_the_others():
    held = ExampleSet(DATA, "training").divided(16)[1]._chosen

    data = Stripes(160)
    examples, out = ExampleSet(data, "training").divided(16)
    data.read.clear()
    assert [len(batch.positions) for batch in examples.batches(range(144), 16)] == [16] * 9
    assert not set(data.read) & set(held)
    data.read.clear()
    out.batch(range(16))
    assert data.read == held[1:], "the first was read to see whether samples have labels"


def test_a_training_that_is_killed_in_its_ending_goes_on(origin, damaged, tmp_path):
    limits = {"epochs": MANY, "stop_at_drop": 0.0, "validate_epochs": False}
    whole, facts, _ = tuned(damaged, tmp_path / "b", origin=origin, data=DATA, **limits)

    class Killed(Heard):
        def progress(self, step, fraction, message):
            if message.startswith(f"epoch {facts['epochs']} of"):
                raise KeyboardInterrupt

    scratch = tmp_path / "scratch"
    again = {"origin": origin, "data": DATA, "scratch": scratch, **limits}
    with pytest.raises(KeyboardInterrupt):
        tuned(damaged, tmp_path / "c", heard=Killed(), **again)
    resumed, same, heard = tuned(damaged, tmp_path / "d", **again)
    assert len(heard.warnings) == 1
    assert states_equal(whole, resumed)
    assert same == facts


def test_too_few_samples_or_none_that_can_be_right_are_said(origin, damaged, tmp_path):
    few = {"epochs": 1, "stop_at_drop": 0.0, "batch_size": 4}
    _, facts, heard = tuned(damaged, tmp_path / "b", origin=origin, data=Stripes(8), **few)
    assert "early_stopping" not in facts
    assert heard.warnings == ["8 training samples are too few to hold some out: no early stopping"]
    unlabelled = Stripes(160, labelled=False)
    options = {"epochs": 1, "stop_at_drop": 0.0, "compare": "outputs"}
    _, facts, heard = tuned(damaged, tmp_path / "c", origin=origin, data=unlabelled, **options)
    assert "early_stopping" not in facts
    assert heard.warnings == ["nothing says which held-out samples are right: no early stopping"]


@pytest.mark.parametrize(
    ("lost", "share", "why"),
    [
        (0.01, 0.1, "reached its aim"),
        (0.02, 0.1, None),
        (0.3, 0.4, None),
        (0.3, 0.5, "will not reach"),
        (0.2, 0.9, None),
    ],
)
def test_when_it_ends(lost, share, why):
    judge = type("Judging", (), {"examples": range(100)})()
    found = EarlyStopping(judge, 0.9, 0.01, 0.2).why(lost, share)
    assert (found is None) if why is None else (why in str(found))


def test_what_must_be_gained_is_said():
    judge = type("Judging", (), {"examples": range(100)})()
    assert EarlyStopping(judge, 0.9, -0.015, None).why(-0.02, 0.3) == (
        "it has reached its aim: 2.0 points gained on 100 samples held out of the training,"
        " 1.5 must be gained"
    )


def test_it_is_looked_at_at_equal_steps_of_its_course():
    stopping = EarlyStopping(None, 1.0, 0.0, None)
    looks = 0
    for step in range(1, 1001):
        looks += stopping.is_due(step / 1000, looks)
    assert looks == 15
    assert not stopping.is_due(0.06, 0)
    assert stopping.is_due(0.0625, 0)


def test_the_ending_is_a_part_of_what_went_before():
    assert ending_steps(1000) == 150
    assert ending_steps(10) == 16, (
        "a rate that falls within a step or two leaves the noise of the last ones"
    )
    assert schedule(150, 150) == 0.0


@dataclass
class _Without(Stripes):
    """The stripes without those at some places."""

    held: tuple[int, ...] = ()

    def __getitem__(self, index):
        return super().__getitem__([n for n in range(160) if n not in self.held][index])
