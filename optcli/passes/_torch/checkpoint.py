"""Where a training stands, and keeping that on the disk."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from optcli.models.formats import torch_modules
from optcli.passes._torch.learning import Score

if TYPE_CHECKING:
    import torch

CHECKPOINT = "checkpoint.pth"


@dataclass
class TrainingProgress:
    """Where a training stands after `epoch` epochs.

    `before` is the score of the network as it was given, None where nothing judges. `curve` has one
    record per epoch; epoch 0 is the state before the first. `share` of the learning rate's course is
    done. Where time is limited: `planned` epochs fit, each that is left has `steps`, `spent_s` is over.
    `looks` are what held-out samples said on the way, `stopped` is why the training ended early, and
    `shows_views` whether its images were changed until then.
    """

    before: Score | None = None
    epoch: int = 0
    best_epoch: int = 0
    best: Score | None = None
    best_state: dict[str, torch.Tensor] = field(default_factory=dict)
    curve: list[dict[str, Any]] = field(default_factory=list)
    share: float = 0.0
    planned: int | None = None
    steps: int | None = None
    spent_s: float = 0.0
    looks: list[dict[str, float]] = field(default_factory=list)
    stopped: str | None = None
    shows_views: bool = False

    def note(self, model: torch.nn.Module, epoch: int, loss: float | None, score: Score | None) -> None:
        """Take in an epoch; its weights are kept where it is the best, or where nothing judges."""
        self.epoch = epoch
        record: dict[str, Any] = {"epoch": epoch}
        if loss is not None:
            record["loss"] = loss
        if score is not None:
            record |= {"validation_loss": score.loss, "validation_accuracy": score.share}
        self.curve.append(record)
        if score is None or score.beats(self.best):
            self.best_epoch, self.best = epoch, score
            self.best_state = {
                k: v.detach().cpu().clone() for k, v in torch_modules.state(model).items()
            }


def save_checkpoint(
    folder: Path, progress: TrainingProgress, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write all that the next epoch needs, whole or not at all."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    record = {
        **vars(progress),
        "before": _plain(progress.before),
        "best": _plain(progress.best),
        "model": torch_modules.state(model),
        "optimizer": optimizer.state_dict(),
    }
    new = folder / f"{CHECKPOINT}.new"
    with new.open("wb") as stream:
        torch.save(record, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, folder / CHECKPOINT)


def load_checkpoint(
    folder: Path | None, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> TrainingProgress | None:
    """Set a network and its optimizer to where a killed training was; None where it left nothing.

    A checkpoint that cannot be read is as good as none.
    """
    import torch

    if folder is None or not (folder / CHECKPOINT).is_file():
        return None
    try:
        record = torch.load(folder / CHECKPOINT, weights_only=True)
        states = record.pop("model"), record.pop("optimizer")
        scores = {name: record[name] and Score(**record[name]) for name in ("before", "best")}
        progress = TrainingProgress(**{**record, **scores})
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
    except (OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, UnpicklingError):
        return None
    return progress


def _plain(score: Score | None) -> dict[str, Any] | None:
    return None if score is None else asdict(score)
