"""Plan files: what they may say, and how they are read, with options above and all faults at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from optcli.errors import InputError, RecipeError
from optcli.measure.queueing.arrivals import ANY_RATE, parse
from optcli.measure.queueing.curve import Curve
from optcli.recipe.nodes import Node, Position, Problems, ReadingBudget, TooManyProblemsError
from optcli.recipe.placeholders import substituted
from optcli.recipe.reading import read
from optcli.recipe.validation import checked, shown_value
from optcli.settings import Settings
from optcli.settings.references import RecipePath

if TYPE_CHECKING:
    from optcli.results.plan import Semantics
    from optcli.serving.targets import ServingTarget

Milliseconds = Annotated[float, Field(ge=0)]
# What a recipe has and no plan file.
_OF_RECIPES = ("model", "variants", "extends", "matrix", "inputs", "data")
# Sections that are merged key by key; of others the upper replaces the lower.
_MERGED = ("slo", "overhead")
# The last of these keys that is given removes the others from what lies below.
_EXCLUSIVE = (("curve", "report"), ("curve", "variant"))


class PromiseSettings(Settings):
    """The promise: percentiles of the latency that a request sees, and the share that may be lost."""

    p50_ms: float | None = Field(None, gt=0, description="half of the requests take at most this long")
    p95_ms: float | None = Field(None, gt=0, description="95 of 100 requests take at most this long")
    p99_ms: float | None = Field(None, gt=0, description="99 of 100 requests take at most this long")
    error_budget: float = Field(
        0.001, ge=0, lt=1, description="share of the requests that may be dropped"
    )

    @property
    def limits_ms(self) -> dict[float, float]:
        """Milliseconds by quantile, of what is promised."""
        limits = {0.5: self.p50_ms, 0.95: self.p95_ms, 0.99: self.p99_ms}
        return {q: limit for q, limit in limits.items() if limit is not None}


class OverheadSettings(Settings):
    """What a request takes before and after the model: decoding, network, drawing boxes."""

    before_ms: Milliseconds = Field(0.0, description="milliseconds before the model")
    after_ms: Milliseconds = Field(0.0, description="milliseconds after the model")
    ingress_ms: Milliseconds = Field(
        0.0,
        description="milliseconds of work of each request at the server's ingress, which takes one"
        " request after the other",
    )
    ingress_cv2: Annotated[float, Field(ge=0)] = Field(
        0.0, description="squared coefficient of variation of this work; 0: it is always the same"
    )
    ingresses: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="processes of the ingress; default: as many as the rate takes where a server can"
        " have several, as Ray Serve has one on each machine",
    )


class PlanSettings(Settings):
    """A plan file: the curve of a model, the traffic, the promise, and what is fixed already.

    The curve is named by `curve`, or by `report` and `variant`: the sweep of a build.
    """

    version: Literal[1] = Field(1, description="version of the plan file's language")
    name: str = Field("plan", min_length=1, max_length=100, description="name of the plan")
    about: str | None = Field(
        None, description="what the plan is for, in words", examples=["Thumbnails of the shop"]
    )
    curve: str | None = Field(
        None,
        description="t(B), the time of a batch of B: points, a line, or one time for single requests",
        examples=["1:25ms,2:27ms,4:34ms,8:48ms", "6ms+4ms*b", "12ms"],
    )
    report: RecipePath | None = Field(
        None,
        description="report.json of a build, or its folder: optcli takes the curve that it measured",
        examples=["artifacts/flowers"],
    )
    variant: str | None = Field(
        None,
        description="variant of the report; default: the recommended one",
        examples=["onnx-int8"],
    )
    rate_per_s: float | None = Field(
        None,
        gt=0,
        description="requests a second; default: as many as `instances` carry, or an answer that needs"
        " no rate",
        examples=[600],
    )
    arrivals: str = Field(
        "poisson",
        description="how requests come: `poisson`, `constant`, `gamma:CV2` (CV2: squared coefficient of"
        " variation), `bursts:BURST_PER_S,BASE,BURST` (rate in a burst, time between bursts, time of a"
        " burst)",
        examples=["gamma:4", "bursts:1400,1800ms,200ms"],
    )
    slo: PromiseSettings | None = Field(None, description="the promise")
    freshness_s: float | None = Field(
        None,
        gt=0,
        description="seconds that results may wait; beside `slo`, only a part of the results may",
    )
    overhead: OverheadSettings = Field(
        OverheadSettings(), description="what a request takes beside the model"
    )
    request_bytes: int | None = Field(
        None,
        ge=0,
        description="bytes of a request; default: those of one row of the recipe's inputs, as binary"
        " tensors",
    )
    headroom: float = Field(
        0.2, ge=0, le=10, description="share of the rate that may come on top and is still carried"
    )
    utilisation: float = Field(
        0.7, gt=0, le=1, description="largest load (rho) with full batches; above 0.8 queues grow fast"
    )
    target: Literal["kserve", "ovms", "ray", "triton"] = Field(
        "triton",
        description="the server that the plan is for, as in `optcli deploy --target`: it decides when"
        " a batch is sent",
    )
    concurrency: int = Field(1, ge=1, le=1024, description="calls in parallel inside an instance")
    batch: int | None = Field(
        None, ge=1, le=4096, description="largest batch; default: optcli chooses it"
    )
    wait_ms: Milliseconds | tuple[Milliseconds, ...] | None = Field(
        None,
        description="longest wait for a batch, or several to compare; default: optcli chooses it",
        examples=[10, [0, 5, 25]],
    )
    instances: int | None = Field(
        None, ge=1, le=10_000, description="number of instances; default: optcli chooses it"
    )
    largest_batch: int = Field(64, ge=1, le=4096, description="the largest batch that optcli tries")
    instances_per_machine: int = Field(1, ge=1, description="instances on one machine")
    price_per_hour: float | None = Field(
        None, ge=0, description="price of one machine for an hour, in any currency"
    )
    cache_hit_rate: float = Field(
        0.0, ge=0, lt=1, description="share of the requests that a prediction cache answers"
    )
    priorities: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict,
        description="share of the traffic by priority, the most urgent first; for `target: ray`, where"
        " each is an application of its own",
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="seed of the simulation; the same seed gives the same plan"
    )

    @model_validator(mode="after")
    def _one_curve(self) -> Self:
        if self.curve is not None and self.report is not None:
            raise ValueError("found curve beside report, wanted one of them")
        if self.curve is not None and self.variant is not None:
            raise ValueError("found curve beside variant, which names what a report measured")
        return self

    @model_validator(mode="after")
    def _shares_make_one(self) -> Self:
        total = sum(self.priorities.values())
        if self.priorities and abs(total - 1) > 1e-6:
            raise ValueError(f"found shares of priorities that add up to {total:g}, wanted 1")
        if self.priorities and self.semantics != "sealed":
            raise ValueError(f"found priorities beside target {self.target}, which serves none apart")
        if self.instances is not None and self.instances < len(self.priorities):
            raise ValueError(
                f"found instances {self.instances} beside {len(self.priorities)} priorities, wanted one"
                " for each: in Ray Serve each priority is an application of its own"
            )
        return self

    @model_validator(mode="after")
    def _some_wait(self) -> Self:
        if self.wait_ms == ():
            raise ValueError("found no wait in wait_ms, wanted at least one")
        return self

    @property
    def promised(self) -> bool:
        """Whether any percentile is promised."""
        return self.slo is not None and bool(self.slo.limits_ms)

    @property
    def waits_ms(self) -> tuple[float, ...]:
        """The waits to choose from, ascending; empty: any."""
        if self.wait_ms is None:
            return ()
        return tuple(sorted(set(self.wait_ms))) if isinstance(self.wait_ms, tuple) else (self.wait_ms,)

    @property
    def names_rate(self) -> bool:
        """Whether a rate is named, or follows from what is."""
        return self.rate_per_s is not None or self.instances is not None

    @property
    def server(self) -> type[ServingTarget]:
        """What the target says of its server."""
        from optcli.serving import targets

        return targets.find(self.target)

    @property
    def semantics(self) -> Semantics:
        """When the server sends a batch."""
        return self.server.semantics

    @property
    def overhead_here(self) -> OverheadSettings:
        """The overhead, with what is known of the server's work where the file says nothing of it."""
        megabytes, added = (self.request_bytes or 0) / 1e6, self.server.overhead_per_mb
        known = dict(self.server.overhead)
        known |= {name: known[name] + ms * megabytes for name, ms in added.items()}
        given = self.overhead.model_dump(exclude_unset=True)
        return OverheadSettings.model_validate({**known, **given})


def load(path: Path | None, options: Mapping[str, Any], names: Mapping[str, str]) -> PlanSettings:
    """The settings of a plan file and of options above it, checked together.

    `options` are keys of a plan file with plain values, `names` what each is called in problems, such
    as `--rate`. Raises `RecipeError` with everything that is wrong.
    """
    problems = Problems()
    settings = None
    try:
        node = Node({}, Position("the command line", 0, 0)) if path is None else _read(path, problems)
        if node is not None and not len(problems):
            node = _above(node, options, names)
            settings = checked(PlanSettings, node, problems)
            if settings is not None:
                _check_texts(node, settings, problems)
    except TooManyProblemsError:
        settings = None
    if settings is None or len(problems):
        raise RecipeError(problems.in_order())
    return settings


def _check_texts(node: Node, settings: PlanSettings, problems: Problems) -> None:
    """Note curves and arrivals of the file that cannot be read; those of options are read later."""
    known = settings.rate_per_s
    rate = ANY_RATE if known is None else known
    texts: list[tuple[Node | None, Callable[[str], object]]] = [
        (node.get("curve"), lambda text: curve_of_text(text, "curve")),
        (node.get("arrivals"), lambda text: parse(text, rate)),
    ]
    for each, read_text in texts:
        if each is None or not each.place.line or each.value is None:
            continue
        try:
            read_text(each.value)
        except InputError as error:
            problems.add(each.place, error.message, error.hint)


def curve_of_text(text: str, place: str) -> Curve:
    """A curve from text. Raises `InputError`, also for one point of a batch size."""
    try:
        curve = Curve.parse(text)
    except InputError as error:
        raise InputError(error.message, place=place, hint=error.hint) from error
    if ":" in text and len(curve.points) == 1:
        size, time = curve.points[0]
        raise InputError(
            f"the curve has one point only, batch {size}: {time:g} ms",
            place=place,
            hint=f"give the times of two batch sizes or more; {time:g}ms alone plans without batches",
        )
    return curve


def is_recipe(path: Path) -> bool:
    """Whether a YAML file is a recipe and no plan; False where it cannot be read."""
    problems = Problems()
    try:
        node = read(path, str(path), problems, ReadingBudget())
    except TooManyProblemsError:
        return False
    return node is not None and any(name in _OF_RECIPES for name, _ in node.items())


def _read(path: Path, problems: Problems) -> Node | None:
    node = read(path, str(path), problems, ReadingBudget())
    if node is None:
        if not len(problems):
            problems.add(
                Position(str(path), 1, 1),
                "the plan file is empty",
                "write rate_per_s, slo and a curve",
            )
        return None
    if not isinstance(node.value, dict):
        message = f"found {shown_value(node.value)}, wanted a mapping of keys"
        problems.add(node.place, message, "write KEY: VALUE pairs")
        return None
    return _from_here(substituted(node, problems), path)


def _from_here(node: Node, path: Path) -> Node:
    """The node with its paths as they are named from the current folder."""
    report = node.get("report")
    if report is None or not isinstance(report.value, str) or not report.value:
        return node
    file = path.parent / Path(report.value).expanduser()
    return node.with_items({"report": replace(report, value=str(file))})


def _above(node: Node, options: Mapping[str, Any], names: Mapping[str, str]) -> Node:
    """The node with options in place of what it says."""
    for key, value in options.items():
        given = placed(value, Position(names.get(key, key), 0, 0))
        below = node.get(key)
        if key in _MERGED and below is not None and isinstance(below.value, dict):
            given = replace(below, value={**below.value, **given.value})
        for group in _EXCLUSIVE:
            if key in group:
                node = node.without(
                    *(other for other in group if other != key and other not in options)
                )
        node = node.with_items({key: given})
    return node


def placed(value: Any, place: Position) -> Node:
    """A plain value as nodes that all stand at one place."""
    if isinstance(value, Mapping):
        return Node({str(key): placed(item, place) for key, item in value.items()}, place, place)
    if isinstance(value, list | tuple):
        return Node(tuple(placed(item, place) for item in value), place, place)
    return Node(value, place, place)
