"""Fine-tuning: it learns, from labels and from a teacher; it can be killed; only weights change."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from pydantic import ValidationError
from stripes import IMAGE, Stripes, changed, states_equal, tuned, written
from tiny_networks import Heard

from optcli import environment
from optcli.errors import InputError, StepError
from optcli.models.formats import torch as torch_format
from optcli.passes import Job, Traits, finetune
from optcli.passes._torch import computing, training
from optcli.passes._torch.checkpoint import CHECKPOINT
from optcli.passes._torch.examples import ExampleSet, spread
from optcli.passes._torch.learning import Score, Teacher
from optcli.passes._torch.training import schedule
from optcli.passes.finetune import Finetune

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread():
    """So small a network gains nothing from a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bf16(monkeypatch):
    """Products in bfloat16 are computed whether or not this CPU has instructions for them."""
    monkeypatch.setattr(computing, "_torch_has_bf16", lambda: True)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_it_learns_from_labels_and_says_how_well(tmp_path, optimizer):
    rate = {"adamw": 0.01, "sgd": 0.1}[optimizer]
    options = {"optimizer": optimizer, "learning_rate": rate, "distillation_weight": 0, "epochs": 6}
    model, facts, heard = tuned(written(tmp_path), tmp_path / "b", **options)
    assert facts["validation_accuracy_before"] < 0.6
    assert facts["validation_accuracy"] > 0.95
    losses = [record["loss"] for record in facts["curve"][1:]]
    assert losses[-1] < 0.5 * losses[0]
    assert [record["epoch"] for record in facts["curve"]] == [0, 1, 2, 3, 4, 5, 6]
    best = facts["curve"][facts["best_epoch"]]
    assert best["validation_accuracy"] == facts["validation_accuracy"]
    batch = ExampleSet(Stripes(64, 1), "validation").batch(range(64))
    with torch.no_grad():
        right = (model(batch.feed["image"]).argmax(1) == batch.labels).float().mean()
    assert float(right) == pytest.approx(facts["validation_accuracy"])
    assert heard.fractions[-1] == 1.0


def test_without_labels_it_learns_what_its_teacher_says(tmp_path):
    origin = written(tmp_path)
    tuned(origin, tmp_path / "t", distillation_weight=0, epochs=6)
    taught = replace(origin, path=tmp_path / "t")
    damaged = changed(taught, tmp_path / "d", lambda m: m.inner.weight.mul_(0).add_(0.01))
    unlabelled = Stripes(labelled=False)
    _, facts, _ = tuned(damaged, tmp_path / "b", origin=taught, data=unlabelled, epochs=8)
    assert facts["distillation_weight"] == 1.0
    assert facts["validation_judged_by"] == "teacher"
    assert facts["validation_accuracy_before"] < 0.6
    assert facts["validation_accuracy"] > 0.9


def test_every_output_can_be_compared_with_the_teacher(tmp_path):
    origin = written(tmp_path, "Two")
    damaged = changed(origin, tmp_path / "d", lambda m: m.head.weight.mul_(0.2))
    options = {"compare": "outputs", "distillation_weight": 1, "output": "scores"}
    _, facts, _ = tuned(damaged, tmp_path / "b", origin=origin, data=Stripes(labelled=False), **options)
    losses = [record["validation_loss"] for record in facts["curve"]]
    assert min(losses) == losses[facts["best_epoch"]] < 0.3 * losses[0]
    assert facts["validation_accuracy"] is None


WAYS = [
    {"autocast": "off", "channels_last": False},
    {"autocast": "off", "channels_last": True},
    {"autocast": "bf16", "channels_last": True},
    {"autocast": "off", "optimizer": "sgd", "batch_size": 12},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_same_seed_gives_the_same_weights_and_a_killed_training_goes_on(tmp_path, way, bf16):
    class Killed(Heard):
        def progress(self, step, fraction, message):
            if message.startswith("epoch 3 of"):
                raise KeyboardInterrupt

    source, scratch = written(tmp_path), tmp_path / "scratch"
    options = {"reestimate_batchnorm": True, **way}
    whole, facts, _ = tuned(source, tmp_path / "a", **options)
    again, _, heard = tuned(source, tmp_path / "b", scratch=tmp_path / "other", **options)
    assert states_equal(whole, again)
    assert heard.warnings == []
    with pytest.raises(KeyboardInterrupt):
        tuned(source, tmp_path / "c", scratch=scratch, heard=Killed(), **options)
    assert [path.name for path in scratch.iterdir()] == [CHECKPOINT]
    data = Stripes()
    resumed, same_facts, heard = tuned(source, tmp_path / "d", scratch=scratch, data=data, **options)
    assert heard.warnings == ["resuming after epoch 2 of 4, where it was stopped"]
    assert states_equal(whole, resumed)
    assert same_facts == facts


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", None])
def test_a_checkpoint_that_cannot_be_read_is_none(tmp_path, content):
    source, scratch = written(tmp_path), tmp_path / "scratch"
    wanted, _, _ = tuned(source, tmp_path / "a", scratch=scratch, epochs=2)
    path = scratch / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-500] if content is None else content)
    found, _, heard = tuned(source, tmp_path / "b", scratch=scratch, epochs=2)
    assert states_equal(found, wanted)
    assert heard.warnings == []


def test_the_best_epoch_is_kept_and_patience_stops(tmp_path):
    source = written(tmp_path)
    good, _, _ = tuned(source, tmp_path / "a", distillation_weight=0, epochs=6)
    good_one = replace(source, path=tmp_path / "a")
    model, facts, heard = tuned(
        good_one, tmp_path / "b", distillation_weight=0, epochs=9, patience=2, optimizer="sgd",
        learning_rate=3.0,
    )  # fmt: skip
    assert facts["best_epoch"] == 0
    assert facts["epochs"] == 2
    assert facts["stopped_early"]
    assert states_equal(model, good)
    assert "the weights stay as they were" in heard.warnings[0]


def test_without_validation_the_last_epoch_is_kept(tmp_path):
    options = {"validate_epochs": False, "distillation_weight": 0}
    assert Finetune(**options).roles() == ("training",)
    _, facts, _ = tuned(written(tmp_path), tmp_path / "b", **options)
    assert facts["best_epoch"] == 4
    assert "validation_accuracy" not in facts


def test_batch_norms_alone_can_be_reestimated(tmp_path):
    source = written(tmp_path)
    shifted = changed(source, tmp_path / "s", lambda m: m.norm.running_mean.add_(3.0))
    model, facts, _ = tuned(shifted, tmp_path / "b", origin=source, epochs=0, reestimate_batchnorm=True)
    images = ExampleSet(Stripes(), "training").batch(range(128)).feed["image"]
    with torch.no_grad():
        wanted = model.conv(images).mean((0, 2, 3))
    assert torch.allclose(model.norm.running_mean, wanted, atol=1e-5)
    before = torch_format.open(shifted.path)
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), model.parameters(), strict=True))
    assert model.norm.momentum == 0.1
    assert facts["epochs"] == facts["best_epoch"] == 0
    assert facts["curve"][0]["validation_loss"] < 10


def test_of_a_pruned_network_only_weights_change(tmp_path):
    from optcli.passes.prune import Prune

    source, out = written(tmp_path), tmp_path / "p"
    out.mkdir()
    Prune(ratio=0.5).run(source, Job(out, IMAGE, source, Heard()))
    model, facts, _ = tuned(replace(source, path=out), tmp_path / "b", origin=source)
    assert (model.conv.out_channels, model.inner.out_channels) == (8, 16)
    assert torch_format.read(tmp_path / "b") == torch_format.read(out)
    assert len(facts["curve"]) == 5


def test_zeros_that_were_made_stay_and_others_do_not(tmp_path):
    source = written(tmp_path, sparsity={"layers": {"inner.weight": 0.5}})

    def thin(model):
        model.inner.weight[:, ::2] = 0
        model.head.weight[0] = 0

    thinned = changed(source, tmp_path / "z", thin)
    model, _, _ = tuned(thinned, tmp_path / "b", origin=source)
    assert not model.inner.weight[:, ::2].any()
    assert model.inner.weight[:, 1::2].all()
    assert model.head.weight[0].any()


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("Net", Stripes(labelled=False), {"distillation_weight": 0.5}, "have no labels"),
        ("Net", Stripes(0), {}, "no training samples"),
        ("Net", Stripes(), {"output": "scorse"}, "no output 'scorse'"),
        ("Net", Stripes(), {"learning_rate": 1e20, "clip_norm": None}, "the loss became"),
        ("plain", Stripes(), {"reestimate_batchnorm": True}, "no batch norm"),
        ("half", Stripes(), {}, "needs FP32 weights, found fp16"),
        ("Two", Stripes(), {"distillation_weight": 0}, "a score per class"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_says_so(tmp_path, name, data, options, message):
    with pytest.raises(StepError) as error:
        tuned(written(tmp_path, name), tmp_path / "b", data=data, **options)
    assert message in error.value.message
    assert error.value.hint


def test_odd_labels_say_so(tmp_path):
    @dataclass
    class Odd(Stripes):
        target: object = 7

        def __getitem__(self, index):
            return replace(super().__getitem__(index), target=self.target)

    source = written(tmp_path)
    with pytest.raises(StepError, match="label 7 is out of range: the network has 4 classes"):
        tuned(source, tmp_path / "b", data=Odd())
    with pytest.raises(InputError, match="wanted class numbers"):
        tuned(source, tmp_path / "c", data=Odd(target="cat"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "reestimate_batchnorm"),
        ({"patience": 2, "validate_epochs": False}, "validation"),
        ({"label_smoothing": 0.1, "distillation_weight": 1}, "labels"),
        ({"held_out": 100}, "does nothing without"),
        ({"stop_at_drop": 0.2, "give_up_at_drop": 0.1}, "must be more than"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(ValidationError, match=words):
        Finetune(**options)


def test_decoded_samples_are_kept_up_to_a_bound():
    data = Stripes(8)
    size_bytes = 8 * 8 * 4
    examples = ExampleSet(data, "training", kept_bytes=3 * size_bytes)
    for _ in range(3):
        assert [len(b.positions) for b in examples.batches(range(8), 3)] == [3, 3, 2]
    assert [data.read.count(position) for position in range(8)] == [1, 1, 1, 3, 3, 3, 3, 3]


def test_a_teacher_answers_once_for_what_it_can_keep():
    asked: list[int] = []

    def call(batch):
        asked.extend(batch.positions)
        return {"output": batch.feed["image"].flatten(1) * 2}

    examples = ExampleSet(Stripes(6), "training")
    teacher = Teacher(call, 6, kept_bytes=2 * 64 * 4)
    for order in ([0, 1], [1, 0], [4, 5], [4, 5]):
        batch = examples.batch(order)
        assert torch.equal(teacher(batch)["output"], batch.feed["image"].flatten(1) * 2)
    assert asked == [0, 1, 4, 5, 4, 5]


def test_scores_and_schedule():
    assert Score(2.0, 0.9).beats(Score(1.0, 0.8))
    assert Score(1.0, 0.9).beats(Score(2.0, 0.9))
    assert not Score(1.0, None).beats(Score(1.0, None))
    assert Score(1.0, None).beats(None)
    rates = [schedule(step, 100) for step in range(100)]
    assert max(rates) == rates[4] == 1.0
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 0.01
    assert spread(10, 4) == [0, 2, 5, 7]


def test_every_sample_is_prepared_once(tmp_path):
    data = Stripes()
    tuned(written(tmp_path), tmp_path / "b", data=data, epochs=3, reestimate_batchnorm=True)
    assert sorted(data.read) == list(range(128))


@pytest.mark.parametrize(
    ("flags", "device", "asked", "used"),
    [
        (["avx512f", "avx512_bf16"], "cpu", "auto", "bf16"),
        (["avx2", "amx_bf16"], "cpu", "auto", "bf16"),
        (["avx512f", "avx512_vnni"], "cpu", "auto", "off"),
        ([], "cpu", "auto", "off"),
        (["avx512_bf16"], "cuda", "auto", "off"),
        (["avx512_bf16"], "cpu", "off", "off"),
        (["avx2"], "cpu", "bf16", "bf16"),
    ],
)
def test_autocast_only_where_the_cpu_has_it_and_the_key_says_which(
    monkeypatch, flags, device, asked, used
):
    monkeypatch.setattr(environment, "cpu", lambda: {"model": "one", "flags": flags})
    configured = Finetune(autocast=asked, device=device)
    assert Traits.of(configured, "finetune", "code").bound_to == {"autocast": used}
    assert Finetune.device_bound


@pytest.mark.parametrize(
    ("network", "gains"),
    [
        (lambda nn: nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.Conv2d(64, 64, 3)), True),
        (lambda nn: nn.Sequential(nn.Conv2d(1, 64, 3), nn.Conv2d(64, 64, 3, groups=64)), False),
        (lambda nn: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)), False),
        (lambda nn: nn.Sequential(nn.Flatten(), nn.Linear(64, 4096), nn.Linear(4096, 64)), True),
        (lambda nn: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), False),
    ],
)
def test_of_their_own_only_networks_that_gain_are_trained_in_bfloat16(
    monkeypatch, bf16, network, gains
):
    monkeypatch.setattr(environment, "cpu", lambda: {"model": "one", "flags": ["avx512_bf16"]})
    model, examples = network(torch.nn), ExampleSet(Stripes(8), "training").batch(range(8))
    around = (model, IMAGE, examples, "cpu")
    assert computing.chosen(*around, autocast="auto", channels_last=None).autocast == gains
    assert computing.chosen(*around, autocast="bf16", channels_last=None).autocast
    assert not computing.chosen(*around, autocast="off", channels_last=None).autocast


@pytest.mark.parametrize(("count", "gains"), [(8, False), (128, True)])
def test_what_a_step_computes_decides_about_bfloat16(monkeypatch, bf16, count, gains):
    monkeypatch.setattr(environment, "cpu", lambda: {"model": "one", "flags": ["avx512_bf16"]})
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 512), torch.nn.Linear(512, 64))
    batch = ExampleSet(Stripes(count), "training").batch(range(count))
    found = computing.chosen(model, IMAGE, batch, "cpu", autocast="auto", channels_last=None)
    assert found.autocast is gains


def test_a_network_that_fails_is_trained_in_fp32(monkeypatch, bf16):
    monkeypatch.setattr(environment, "cpu", lambda: {"model": "one", "flags": ["avx512_bf16"]})
    batch = ExampleSet(Stripes(8), "training").batch(range(8))
    found = computing.chosen(
        torch.nn.Linear(3, 4), IMAGE, batch, "cpu", autocast="auto", channels_last=None
    )
    assert found == computing.Computing("cpu")


def test_where_pytorch_may_not_use_the_instructions_it_trains_in_fp32(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True}, raising=False)
    source = written(tmp_path)
    _, facts, heard = tuned(source, tmp_path / "b", autocast="bf16", epochs=1)
    assert (facts["autocast"], facts["channels_last"]) == (None, True)
    assert "PyTorch sees no bfloat16 instructions" in heard.warnings[0]


def test_in_bfloat16_it_learns_as_well_and_weights_stay_fp32(tmp_path, bf16):
    source, options = written(tmp_path), {"distillation_weight": 0, "epochs": 6}
    exact, known, _ = tuned(source, tmp_path / "a", autocast="off", **options)
    model, facts, heard = tuned(source, tmp_path / "b", autocast="bf16", **options)
    assert (known["autocast"], facts["autocast"], facts["channels_last"]) == (None, "bf16", True)
    assert heard.warnings == []
    assert not states_equal(model, exact), "it was computed otherwise"
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert facts["validation_accuracy"] >= known["validation_accuracy"] - 0.02
    assert facts["validation_accuracy_before"] == known["validation_accuracy_before"], "judged in FP32"
    assert all(value.is_contiguous() for value in model.parameters())


def test_another_layout_changes_no_more_than_rounding(tmp_path):
    source, options = written(tmp_path), {"autocast": "off", "epochs": 1}
    plain, _, _ = tuned(source, tmp_path / "a", channels_last=False, **options)
    model, facts, _ = tuned(source, tmp_path / "b", **options)
    assert facts["channels_last"], "the default for a network with convolutions"
    # The normalisation takes this bias out again: rounding decides where it goes, and the mean follows.
    free = {"conv.bias", "norm.running_mean"}
    for name in plain.state_dict().keys() - free:
        one, other = (state[name].float() for state in (plain.state_dict(), model.state_dict()))
        assert torch.allclose(one, other, atol=1e-4), name
    images = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(plain.eval()(images), model.eval()(images), atol=1e-2)


def test_a_gradient_that_is_very_short_has_a_direction_all_the_same(tmp_path):
    """As that of a deep network with random weights in evaluation mode: 1e-11 and less."""
    short = changed(written(tmp_path), tmp_path / "short", lambda m: m.head.weight.mul_(1e-13))
    short = changed(short, tmp_path / "shorter", lambda m: m.head.bias.mul_(1e-13))
    _, facts, heard = tuned(short, tmp_path / "b", epochs=1, channels_last=True, autocast="off")
    assert facts["channels_last"]
    assert not any("layout" in warning for warning in heard.warnings)


def test_a_network_that_does_not_take_the_layout_keeps_its_own(tmp_path):
    _, facts, heard = tuned(written(tmp_path, "Viewing"), tmp_path / "b", autocast="off", epochs=1)
    assert not facts["channels_last"]
    assert heard.warnings == ["channels_last: the network does not take it; training without it"]


def test_a_network_that_bfloat16_would_spoil_is_trained_in_fp32(tmp_path, bf16):
    _, facts, heard = tuned(written(tmp_path, "Cancelling"), tmp_path / "b", autocast="bf16", epochs=1)
    assert facts["autocast"] is None
    assert "changes the network's gradient too much" in heard.warnings[0]


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes_with_the_threads_that_are_asked_for(tmp_path, threads):
    class Counting(Heard):
        def progress(self, step, fraction, message):
            counts.append(torch.get_num_threads())

    counts: list[int] = []
    tuned(written(tmp_path), tmp_path / "b", heard=Counting(), threads=threads, epochs=1)
    assert set(counts) == {threads}
    assert torch.get_num_threads() == 1, "as it was before"


def test_progress_says_loss_rate_and_what_is_left(tmp_path, monkeypatch):
    class Listening(Heard):
        def progress(self, step, fraction, message):
            said.append(message)

    class Clock:
        now = 0.0

        def __call__(self):
            self.now += 0.25  # every look takes so long
            return self.now

    said: list[str] = []
    monkeypatch.setattr(finetune, "Training", partial(training.Training, clock=Clock()))
    tuned(written(tmp_path), tmp_path / "b", heard=Listening(), epochs=3, autocast="off")
    assert said[0] == "judging the network as it is"
    running = [text for text in said if re.fullmatch(
        r"epoch 2 of 3: loss \d\.\d{3}, \d+(\.\d+)? images/s, (\d+ min )?\d+ s left", text
    )]  # fmt: skip
    assert running
    assert re.fullmatch(
        r"epoch 3 of 3: loss \d\.\d{3}, validation top-1 \d+\.\d %, .*best.*, \d+(\.\d+)? images/s",
        said[-1],
    )
