"""Fine-tuning: train a network further, so that it regains what pruning has cost."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli import environment
from optcli.artifact import EXPECTED, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, counted, did_you_mean
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_devices, torch_modules
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._on_gpu import bound_to, needs_of
from optcli.passes._torch.computing import Autocast, Computing, chosen, computing_with, resolved
from optcli.passes._torch.examples import Examples, ExampleSet, Views, harmless
from optcli.passes._torch.learning import (
    Features,
    Judge,
    Loss,
    Teacher,
    changes_in_training,
    matched,
    some_answers,
)
from optcli.passes._torch.networks import network, sparsity_masks
from optcli.passes._torch.pace import MOST_HELD_OUT, EarlyStopping, training_facts
from optcli.passes._torch.part_losses import are_no_classes, part_losses
from optcli.passes._torch.rates import groups, rate_shares
from optcli.passes._torch.training import Training

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Call

_RATES = {"adamw": 5e-4, "sgd": 0.01}
_HELD_OUT = 512


class Finetune(Pass):
    """Trains a network further on the training data, so that it regains what pruning has cost.

    It learns from labels, from the model as it came from its source (its teacher), or from both;
    without labels from the teacher alone. Only weights change: what was cut away stays away, and
    zeros that `sparsify` made stay zero. The epoch that is best on the validation data is kept. A
    build that is killed goes on after the last whole epoch. With `feature_weight` its blocks also learn
    the outputs of the teacher's blocks, where both have the same shape. If blocks were removed, the
    block before them learns their output.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch",))
    device_bound: ClassVar[bool] = True
    uses: ClassVar[tuple[Role, ...]] = ("training", "validation")
    reads_origin: ClassVar[bool] = True
    reads_outputs: ClassVar[bool] = True

    device: Literal["cpu", "cuda"] = Field("cpu", description="where it trains")
    epochs: int = Field(5, ge=0, description="times to go through the training data")
    max_minutes: float | None = Field(
        None, gt=0, description="train no longer than this: so many of `epochs` as fit, or fewer steps "
        "where not one fits; the result depends on how fast the machine is",
    )  # fmt: skip
    optimizer: Literal["adamw", "sgd"] = Field(
        "adamw", description="AdamW, or SGD with Nesterov momentum 0.9"
    )
    learning_rate: float | None = Field(
        None, gt=0, description="learning rate after the warm-up, from which it falls along a cosine; "
        "default: 0.0005 for adamw, 0.01 for sgd",
    )  # fmt: skip
    batch_size: int = Field(32, ge=1, description="samples per step; the rest of an epoch is left out")
    weight_decay: float = Field(1e-4, ge=0, description="pull of all weights towards zero")
    clip_norm: float | None = Field(
        1.0,
        gt=0,
        description="largest norm of the gradient; a longer one is scaled down; null: no limit",
    )
    distillation_weight: float | None = Field(
        None, ge=0, le=1, description="the teacher's share of the loss, the labels have the rest; "
        "default: 0.5, and 1 where there are no labels",
    )  # fmt: skip
    feature_weight: float = Field(
        0.0, ge=0, description="weight, beside the loss, of the distance between the outputs of blocks "
        "and those of the teacher's blocks of the same name and shape",
    )  # fmt: skip
    temperature: float = Field(2.0, gt=0, description="softens logits before they are compared")
    compare: Literal["auto", "logits", "outputs"] = Field(
        "auto",
        description="what the teacher is compared by: `logits`, the class scores of one output, or all"
        " `outputs`, each part by a distance of its own (boxes, scores, masks, embeddings), as recipe"
        " or file describe them; `auto`: `outputs` where these are known to be no class scores",
    )
    augment: Literal["off", "auto"] = Field(
        "off",
        description="`auto`: show images mirrored and shifted at random, each where the teacher stays "
        "right on such images; only where the time is enough to see every sample five times",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of a label given to all classes")
    output: str | None = Field(
        None, description="the output that holds the class scores; default: the first"
    )
    reestimate_batchnorm: bool = Field(
        False,
        description="average the statistics of batch norms over the training data anew, before the "
        "first epoch and after each; with `epochs: 0` that is all that is done",
    )
    threads: int | None = Field(
        None, ge=1, description="to compute with; default: the cores that this process may use"
    )
    channels_last: bool | None = Field(
        None,
        description="keep images with their channels last while training on a CPU; default: where the "
        "network has convolutions over images and takes it",
    )
    autocast: Autocast = Field(
        "auto",
        description="compute linear layers and convolutions in bfloat16 while training; weights stay "
        "FP32, on CPUs attention and depthwise convolutions, too; `auto`: on CPUs with instructions "
        "for it, where the network has enough products for each value to gain from it",
    )
    validate_epochs: bool = Field(
        True, description="judge every epoch on the validation data and keep the best; false: the last"
    )
    patience: int | None = Field(
        None, ge=1, description="stop after so many epochs without improvement on the validation data"
    )

    stop_at_drop: float | None = Field(
        None, ge=-1, le=1, description="end early once at most this share of samples that are held out "
        "of the training is lost against the teacher (below 0: so much is gained); the rate then falls "
        "to zero in a few steps",
    )  # fmt: skip
    give_up_at_drop: float | None = Field(
        None, ge=0, le=1, description="end early where more than this share of the held-out samples is "
        "lost against the teacher when half of the training is over",
    )  # fmt: skip
    held_out: int = Field(
        _HELD_OUT, ge=1, description="training samples that are held out for `stop_at_drop` and "
        "`give_up_at_drop`, at most a tenth of all; without these options none",
    )  # fmt: skip

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.epochs == 0 and not self.reestimate_batchnorm:
            raise ValueError("`epochs: 0` does nothing without `reestimate_batchnorm: true`")
        return self

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> Self:
        if self.patience is not None and not self.validate_epochs:
            raise ValueError("`patience` needs the validation data: leave out `validate_epochs: false`")
        return self

    @model_validator(mode="after")
    def _early_ends_fit(self) -> Self:
        stop, give_up = self.stop_at_drop, self.give_up_at_drop
        if stop is None and give_up is None and self.held_out != _HELD_OUT:
            raise ValueError("`held_out` does nothing without `stop_at_drop` or `give_up_at_drop`")
        if stop is not None and give_up is not None and stop >= give_up:
            raise ValueError("`give_up_at_drop` must be more than `stop_at_drop`")
        return self

    @model_validator(mode="after")
    def _smoothing_needs_labels(self) -> Self:
        if self.label_smoothing and self.distillation_weight == 1:
            raise ValueError("`label_smoothing` acts on labels, which `distillation_weight: 1` ignores")
        return self

    def requires(self) -> Needs:
        return needs_of(self.device, self.needs)

    def roles(self) -> tuple[Role, ...]:
        return ("training", "validation") if self.validate_epochs else ("training",)

    def bound_to(self) -> dict[str, Any]:
        bound: dict[str, Any] = {"autocast": resolved(self.autocast, self.device)}
        if self.max_minutes is not None:  # how much fits depends on what it is computed with
            bound |= bound_to(self.device) or {"cpu": environment.cpu()}
            bound["threads"] = self.threads or environment.usable_cores()
        return bound

    def run(self, source: Artifact, job: Job) -> Made:
        with computing_with(self.threads or environment.usable_cores()):
            return self._run(source, job)

    def _run(self, source: Artifact, job: Job) -> Made:
        import torch

        torch.manual_seed(job.seed)
        torch_devices.require(job.device)
        model = network(source).to(job.device)
        trained = [value for value in torch_modules.parameters(model) if value.is_floating_point()]
        if not trained or any(value.dtype != torch.float32 for value in trained):
            raise StepError(
                f"fine-tuning needs FP32 weights, found {torch_format.precision(model)}",
                hint="put finetune before passes that quantize or convert to another precision",
            )
        examples = self._examples("training", job)
        loss = self._loss(source, examples)
        examples, held_out = self._divided(examples, job)
        computing = self._computing(model, examples, job)
        is_taught = loss.weight or self.feature_weight or held_out
        teacher = self._teacher(job, computing) if is_taught else None
        call = computing.calling(model, job.inputs)
        loss = self._by_parts(loss, teacher and teacher[1], examples, job)
        features = self._features((model, call), teacher, examples, job)
        views = self._views(loss, teacher, examples, job)
        rate = self.learning_rate or _RATES[self.optimizer]
        training = Training(
            model=model,
            call=call,
            examples=examples,
            judge=self._judge(job, loss, teacher[1] if teacher and loss.weight else None),
            loss=loss,
            teacher=_remembering(teacher[1], examples, features or views)
            if teacher and (loss.weight or self.feature_weight)
            else None,
            optimizer=self._optimizer(model, call, self._few(examples, job), rate),
            epochs=self.epochs,
            batch_size=self._batch_size(job),
            learning_rate=rate,
            clip_norm=self.clip_norm,
            patience=self.patience,
            settle=self.reestimate_batchnorm,
            seed=job.seed,
            zeros=sparsity_masks(model, source),
            features=features,
            views=views,
            max_seconds=self.max_minutes and 60 * self.max_minutes,
            stopping=self._stopping(held_out, teacher, loss, job),
            own_layers=self._own_layers(model, call, examples, job),
        )
        with features.taken(model, teacher[0]) if features and teacher else nullcontext():
            progress = training.run(job)
        model.load_state_dict(progress.best_state)
        if self.epochs and progress.best_epoch == 0:
            job.warn("no epoch was better on the validation data: the weights stay as they were")
        description = torch_format.read(source.path)
        torch_format.save(
            torch_modules.on(model, "cpu"), job.out, description, source.path / torch_format.CODE
        )
        facts = training_facts(progress, training)
        reached = facts.get("validation_accuracy")
        known = {}
        if reached and facts["validation_judged_by"] == "labels":
            known[EXPECTED] = {"by": "finetuning reached on its validation data", "top1": reached}
        return Made(facts={"finetuning": facts | computing.facts(), **known})

    def _computing(self, model: torch.nn.Module, examples: ExampleSet, job: Job) -> Computing:
        computing = chosen(
            model,
            job.inputs,
            self._few(examples, job),
            job.device,
            autocast=self.autocast,
            channels_last=self.channels_last,
        )
        for reason in computing.reasons:
            job.warn(f"{reason}; training without it")
        return computing

    def _loss(self, source: Artifact, examples: ExampleSet) -> Loss:
        names = source.facts.get("outputs") or ["output"]
        output = self.output or names[0]
        if output not in names:
            raise StepError(f"there is no output {output!r}", hint=did_you_mean(output, names))
        weight = self.distillation_weight
        if weight is None:
            weight = 0.5 if examples.labelled else 1.0
        if weight < 1 and not examples.labelled:
            raise StepError(
                f"the training samples have no labels, and distillation_weight is {weight:g}",
                hint="give them labels, or set `distillation_weight: 1`: the teacher alone",
            )
        return Loss(output, weight, self.temperature, self.label_smoothing)

    def _examples(self, role: Role, job: Job) -> ExampleSet:
        """The samples of a role; without their labels where the outputs are no scores for these."""
        examples = ExampleSet(getattr(job, role), role)
        wants_labels = self.distillation_weight is not None and self.distillation_weight < 1
        if not examples.labelled or wants_labels or not self._compares_parts(job):
            return examples
        job.warn(f"the labels of the {role} samples are not used: the outputs are no scores for them")
        return examples.without_labels()

    def _compares_parts(self, job: Job) -> bool:
        """Whether every output is compared, part by part."""
        if self.compare == "auto" and self.output is None:
            return are_no_classes(job.parts)
        return self.compare == "outputs"

    def _own_layers(self, model: torch.nn.Module, call: Call, examples: ExampleSet, job: Job) -> bool:
        """Whether PyTorch's own layers alone are put into training mode."""
        return self._compares_parts(job) and changes_in_training(model, call, self._few(examples, job))

    def _by_parts(self, loss: Loss, teacher: Call | None, examples: ExampleSet, job: Job) -> Loss:
        """The loss with the distances of all parts, where these are compared."""
        if teacher is None or not loss.weight or not self._compares_parts(job):
            return loss
        answers = some_answers(teacher, examples, self._batch_size(job))
        return replace(loss, part_losses=part_losses(job.parts, job.postprocess, answers))

    def _teacher(self, job: Job, computing: Computing) -> tuple[torch.nn.Module, Call]:
        if job.origin.format != Format.TORCH:
            raise StepError(
                f"the teacher is the model as it came from its source, which is {job.origin.format}",
                hint="set `distillation_weight: 0` and `feature_weight: 0` to learn from labels alone,"
                " and leave out `stop_at_drop` and `give_up_at_drop`",
            )
        model = torch_format.open(job.origin.path).to(job.device)
        computing.lay_out(model)
        return model, computing.calling(model, job.inputs)

    def _features(
        self,
        student: tuple[torch.nn.Module, Call],
        teacher: tuple[torch.nn.Module, Call] | None,
        examples: ExampleSet,
        job: Job,
    ) -> Features | None:
        if not self.feature_weight or teacher is None:
            return None
        few = self._few(examples, job)
        features = matched(student, teacher, few, self.feature_weight)
        if features.skipped:
            names = ", ".join(features.skipped[:3]) + (" ..." if len(features.skipped) > 3 else "")
            job.warn(
                f"feature_weight: {counted(len(features.skipped), 'block differs', 'blocks differ')} in"
                f" shape from the teacher's, without a match: {names}"
            )
        if not features.names:
            job.warn("feature_weight: no block can be matched; training without it")
        return features if features.names else None

    def _views(
        self,
        loss: Loss,
        teacher: tuple[torch.nn.Module, Call] | None,
        examples: ExampleSet,
        job: Job,
    ) -> Views | None:
        if self.augment == "off":
            return None
        if teacher is None:
            job.warn("augment: without a teacher nothing says which views are harmless")
            return None
        torch_modules.evaluating(teacher[0])
        views = harmless(teacher[1], loss, examples, min(self._batch_size(job), len(examples)))
        if isinstance(views, str):
            job.warn(f"augment: {views}; training without it")
            return None
        return views

    def _divided(self, examples: ExampleSet, job: Job) -> tuple[ExampleSet, ExampleSet | None]:
        """The samples to train on, and those that say when it may end, where that is wanted."""
        if self.stop_at_drop is None and self.give_up_at_drop is None:
            return examples, None
        if not examples.labelled and self._compares_parts(job):
            job.warn("nothing says which held-out samples are right: no early stopping")
            return examples, None
        held_out = min(self.held_out, int(MOST_HELD_OUT * len(examples)))
        if not held_out:
            job.warn(
                f"{len(examples)} training samples are too few to hold some out: no early stopping"
            )
            return examples, None
        size = self._batch_size(job)
        held_out -= held_out % size if held_out > size else 0  # some networks take whole batches alone
        return examples.divided(held_out)

    def _stopping(
        self,
        held_out: ExampleSet | None,
        teacher: tuple[torch.nn.Module, Call] | None,
        loss: Loss,
        job: Job,
    ) -> EarlyStopping | None:
        if held_out is None or teacher is None:
            return None
        judge = Judge(held_out, self._batch_size(job), loss, Teacher(teacher[1], len(held_out)))
        right = judge(*teacher).share
        if right is None:
            job.warn("nothing says which held-out samples are right: no early stopping")
            return None
        return EarlyStopping(judge, right, self.stop_at_drop, self.give_up_at_drop)

    def _judge(self, job: Job, loss: Loss, teacher: Call | None) -> Judge | None:
        if not self.validate_epochs:
            return None
        examples = self._examples("validation", job)
        if not examples.labelled and teacher is None:
            raise StepError(
                "the validation samples have no labels, and there is no teacher",
                hint="give them labels, set `distillation_weight`, or `validate_epochs: false`",
            )
        return Judge(examples, self._batch_size(job), loss, teacher and Teacher(teacher, len(examples)))

    def _optimizer(
        self, model: torch.nn.Module, call: Call, few: Examples, rate: float
    ) -> torch.optim.Optimizer:
        import torch

        values = [value for value in torch_modules.parameters(model) if value.requires_grad]
        grouped = groups(values, rate_shares(model, call, few))
        # Fused: one call for all weights instead of ten for each, of which there may be hundreds.
        common: dict[str, Any] = {"lr": rate, "weight_decay": self.weight_decay, "fused": True}
        if self.optimizer == "adamw":
            return torch.optim.AdamW(grouped, **common)
        return torch.optim.SGD(grouped, momentum=0.9, nesterov=True, **common)

    def _few(self, examples: ExampleSet, job: Job) -> Examples:
        """The first batch: some networks take no smaller one."""
        return examples.batch(range(min(self._batch_size(job), len(examples))))

    def _batch_size(self, job: Job) -> int:
        """The option, or the one batch size that the recipe's inputs have."""
        fixed = max((size for spec in job.inputs if isinstance(size := spec.shape[0], int)), default=1)
        return fixed if fixed > 1 else self.batch_size


def _remembering(call: Call, examples: ExampleSet, needs_all: Features | Views | None) -> Teacher:
    """The teacher; where its blocks are matched or images change, it computes every batch."""
    return Teacher(call, len(examples)) if needs_all is None else Teacher(call, len(examples), 0)
