"""The trials of one search, kept in the store as they end, and Optuna's sampler over them.

A run that was killed goes on with the trials that it finished. What the sampler proposes depends on
them and on the seed alone: the study is built anew from the records for every proposal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from optcli.results.tuning import TuningTrial
from optcli.store import disk
from optcli.tuning.space import Parameters, Space

if TYPE_CHECKING:
    import optuna

_STARTUP = 5
_ATTEMPTS = 40


class Study:
    """The trials at `path`, one JSON object a line; a line that was not written whole is left out."""

    def __init__(self, path: Path, space: Space, seed: int, bar: float) -> None:
        self._path = path
        self._space = space
        self._seed = seed
        self._bar = bar
        self.trials: list[TuningTrial] = _read(path)

    def keep(self, trial: TuningTrial) -> None:
        """Add a trial that has ended. Raises `StoreError` where it cannot be written."""
        self.trials.append(trial)
        text = "".join(f"{each.model_dump_json()}\n" for each in self.trials)
        with disk.failures(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            disk.write_whole(fresh, text.encode())
            fresh.replace(self._path)

    def sample(
        self, fixed: Mapping[str, Any], carried: Mapping[str, Any] | None = None
    ) -> Parameters | None:
        """Parameters that no trial had yet, with these fixed; None where the sampler finds none.

        `carried` are added to what it finds.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        seen = {self._space.candidate(trial.parameters).identity for trial in self.trials}
        barren = self._barren()
        for attempt in range(_ATTEMPTS):
            seed = self._seed + 1000 * len(self.trials) + attempt
            # Where the sampler keeps to what it knows, chance finds what else there is.
            study = self._study(fixed, seed, by_chance=attempt >= _ATTEMPTS // 2)
            parameters = {**self._space.suggest(study.ask()), **(carried or {})}
            new = self._space.candidate(parameters).identity not in seen
            if new and _kind(parameters) not in barren:
                return parameters
        return None

    def _barren(self) -> set[tuple[Any, ...]]:
        """What failed each time, such as dynamic INT8 of a network without matrix products."""
        failed = {_kind(trial.parameters) for trial in self.trials if trial.stage == "failed"}
        return failed - {_kind(trial.parameters) for trial in self.trials if trial.stage != "failed"}

    def _study(self, fixed: Mapping[str, Any], seed: int, *, by_chance: bool) -> optuna.Study:
        import warnings

        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler: optuna.samplers.BaseSampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=_STARTUP, multivariate=True, group=True
            )
            if by_chance:
                sampler = optuna.samplers.RandomSampler(seed=seed)
            if fixed:
                sampler = optuna.samplers.PartialFixedSampler(dict(fixed), sampler)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in self.trials:
            if trial.score is None or trial.loss is None:
                continue
            known = _Known(self._space.names(trial.parameters))
            self._space.suggest(known)  # type: ignore[arg-type]
            study.add_trial(
                optuna.trial.create_trial(
                    params=known.params,
                    distributions=known.distributions,
                    value=trial.score.value,
                    constraints={"loss": trial.loss.value - self._bar},
                )
            )
        return study


def _kind(parameters: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides whether a candidate can be made at all."""
    return tuple(parameters.get(key) for key in ("runtime", "precision", "quantizer"))


class _Known:
    """Stands in for a trial whose parameters are known, and notes where they were drawn from."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, optuna.distributions.BaseDistribution] = {}

    def suggest_categorical(self, name: str, choices: tuple[Any, ...]) -> Any:
        from optuna.distributions import CategoricalDistribution

        value = self._values.get(name, choices[0])
        return self._noted(
            name, value if value in choices else choices[0], CategoricalDistribution(choices)
        )

    def suggest_float(self, name: str, low: float, high: float) -> float:
        from optuna.distributions import FloatDistribution

        return float(
            self._noted(name, float(self._values.get(name, low)), FloatDistribution(low, high))
        )

    def suggest_int(self, name: str, low: int, high: int) -> int:
        from optuna.distributions import IntDistribution

        return int(self._noted(name, int(self._values.get(name, low)), IntDistribution(low, high)))

    def _noted(self, name: str, value: Any, distribution: Any) -> Any:
        self.params[name], self.distributions[name] = value, distribution
        return value


def _read(path: Path) -> list[TuningTrial]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    trials = []
    for line in lines:
        try:
            trials.append(TuningTrial.model_validate_json(line))
        except ValidationError:  # written by another version: what follows it cannot be relied on
            break
    return trials
