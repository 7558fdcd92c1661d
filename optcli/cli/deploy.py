"""`optcli deploy`: what a serving engine reads, from a variant and a plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from optcli.cli import options, reports, show
from optcli.cli.progress import Progress
from optcli.errors import UsageError
from optcli.files import registry

# Options that some servers have a use for: what is said of the others, and what to do.
_FOR_SOME = {
    "storage_uri": ("--target {} fetches nothing", "leave it out"),
    "canary_traffic": ("--target {} splits no traffic", "leave it out, or --target {}"),
    "wait_ms": ("--target {} takes the plan's wait", "plan again: optcli plan RECIPE --wait 10ms"),
    "images": ("optcli writes nothing that reads images for --target {}", "take --target {}"),
    "cache": ("optcli writes no cache for --target {}", "leave it out, or --target {}"),
    "sample_inputs": (
        "optcli writes nothing that keeps statistics for --target {}",
        "leave it out, or --target {}",
    ),
    "known_answers": (
        "optcli writes no cache for --target {}",
        "leave it out, or --target {} --images --cache memory",
    ),
    "grpc": ("--target {} decides by itself whether it speaks gRPC", "leave it out, or --target {}"),
    "extensions": ("--target {} decides by itself what it speaks", "leave it out, or --target {}"),
}
# What people look for, and what became of it.
_NOT_WRITTEN = {
    "torchserve": "TorchServe is archived by its makers and gets no fixes any more",
}


class _Engine(click.Choice[str]):
    """A server; one that people look for and optcli does not write for says why."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in _NOT_WRITTEN:
            raise UsageError(
                _NOT_WRITTEN[value],
                place=f"--target {value}",
                hint="--target ray and --target triton serve ONNX, OpenVINO and TorchScript",
            )
        return super().convert(value, param, ctx)


@dataclass(frozen=True)
class DeploymentOptions:
    """What `optcli deploy` alone takes."""

    engine: str = options.option(
        "--target",
        required=True,
        type=_Engine(registry.names("optcli.serving.targets")),
        help="The server to write for.",
    )
    plan: Path | None = options.option(
        "--plan",
        type=options.FILE,
        metavar="FILE",
        help="A plan that `optcli plan --json` printed.  [default: a plan for the recipe's `slo`]",
    )
    out: Path | None = options.option(
        "--out",
        type=options.OUT_PATH,
        metavar="FOLDER",
        help="A new or empty folder.  [default: VARIANT-TARGET]",
    )
    name: str | None = options.option(
        "--name", help="The model's name on the server.  [default: the variant's]"
    )
    storage_uri: str | None = options.option(
        "--storage-uri",
        metavar="URI",
        help="For kserve: where the cluster finds a copy of the repository, such as"
        " pvc://models/digits.",
    )
    canary_traffic: str | None = options.option(
        "--canary-traffic",
        metavar="SHARE",
        help="For kserve: the share of the live requests that VARIANT gets, where another one is"
        " served by the same --name: 10%.",
    )
    wait: str | None = options.option(
        "--wait", help="For ray: the longest wait for a batch: 10ms.  [default: the plan's]"
    )
    priority: tuple[str, ...] = options.option(
        "--priority",
        multiple=True,
        metavar="NAME=SHARE",
        help="Priorities that requests may name, with their shares, the most urgent first."
        "  [default: the plan's]",
    )
    images: bool = options.option(
        "--images",
        is_flag=True,
        help="For ray and triton: also take JPEG and PNG images, and answer classes or boxes.",
    )
    cache: str | None = options.option(
        "--cache",
        metavar="PLACE",
        help="For ray: keep answers in `memory`, or in a Redis such as redis://127.0.0.1:6379/0.",
    )
    cache_ttl: str | None = options.option(
        "--cache-ttl", metavar="TIME", help="How long an answer is kept.  [default: 1h]"
    )
    sample_inputs: int | None = options.option(
        "--sample-inputs",
        type=click.IntRange(1, 4096),
        metavar="N",
        help="For ray: keep statistics of N inputs a day, drawn at random, for `optcli loadtest"
        " --drift`.",
    )
    known_answers: str | None = options.option(
        "--known-answers",
        metavar="URI",
        help="Answers that `optcli infer` wrote with this variant: the cache has them from the start.",
    )
    grpc: bool = options.option(
        "--grpc", is_flag=True, help="For ray: also speak the protocol over gRPC, on port 9000."
    )
    extensions: bool = options.option(
        "--extensions",
        is_flag=True,
        help="For ray: also take bodies in gzip or deflate, and answer the protocol's statistics.",
    )
    force: bool = options.option(
        "--force",
        is_flag=True,
        help="Deploy although the plan's curve is from another build or from a busy machine or, for"
        " ray, the wait is too short.",
    )


@click.command(
    "deploy",
    epilog=options.examples(
        "optcli deploy onnx-int8 --target ray --plan plan.json --images --cache memory --out deployed",
        "optcli deploy onnx-int8 recipe.yaml --target kserve --storage-uri pvc://models/digits",
    ),
)
@click.argument("variant")
@click.argument("where", required=False, type=click.Path(path_type=Path), metavar="[RECIPE|REPORT]")
@options.group("given", DeploymentOptions)
@options.artifacts
@options.trust
@options.store
@options.output
def command(
    variant: str,
    where: Path | None,
    given: DeploymentOptions,
    artifacts: Path | None,
    trust: bool,
    store: Path | None,
    as_json: bool,
) -> None:
    """Write a server, or the files for one, that serves VARIANT of the last build as a plan says.

    For ray, optcli writes a bundle: a server for Ray Serve with the model, and with the replicas,
    batches, wait and queue of the plan; `optcli serve` starts it. For triton it writes a model
    repository: the model and config.pbtxt. For kserve it adds manifests with pods and autoscaling. Each
    folder has the plan, a golden request with its response, and a README with the commands. optcli
    reads its files back and compares them with the model. It needs the extra `serve`.
    """
    from optcli.serving import quantities as q
    from optcli.serving import targets
    from optcli.serving.deploy import deploy, document
    from optcli.serving.targets import DeployOptions

    kind = targets.find(given.engine)
    for option, (sentence, instead) in _FOR_SOME.items():
        if getattr(given, option.removesuffix("_ms")) in (None, False) or option in kind.takes:
            continue
        message = sentence.format(given.engine)
        hint = instead.format(" or ".join(targets.taking(option)))
        message, hint = kind.why_not.get(option, (message, hint))
        raise UsageError(message, place=f"--{option.removesuffix('_ms').replace('_', '-')}", hint=hint)
    if given.cache_ttl is not None and given.cache is None:
        raise UsageError("there is no cache", place="--cache-ttl", hint="add --cache memory")
    traffic = given.canary_traffic
    priorities = q.priorities(given.priority, "--priority")
    place = reports.find(where, artifacts)
    with Progress() as progress:
        deployed = deploy(
            variant,
            place.report,
            place.path,
            given.out or Path(f"{variant}-{given.engine}"),
            engine=given.engine,
            plan=given.plan,
            recipe=place.recipe,
            name=given.name,
            options=options.settings_of(
                DeployOptions,
                given,
                canary_traffic=None if traffic is None else q.share(traffic, "--canary-traffic"),
                wait_ms=None if given.wait is None else q.milliseconds(given.wait, "--wait"),
                cache_ttl_s=q.seconds(given.cache_ttl or "1h", "--cache-ttl"),
                sample_inputs=given.sample_inputs or 0,
                priorities=priorities,
            ),
            trust=trust,
            store=place.opened(store),
            observer=progress,
        )
    show(deployed, document(deployed), as_json=as_json)
