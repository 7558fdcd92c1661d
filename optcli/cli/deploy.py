"""`optcli deploy`: what a serving engine reads, from a variant and a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from optcli.cli import options, reports, tell
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


@click.command(
    "deploy",
    epilog=options.examples(
        "optcli deploy onnx-int8 --target ray --plan plan.json --images --cache memory --out deployed",
        "optcli deploy onnx-int8 recipe.yaml --target kserve --storage-uri pvc://models/digits",
    ),
)
@click.argument("variant")
@click.argument("where", required=False, type=click.Path(path_type=Path), metavar="[RECIPE|REPORT]")
@click.option(
    "--target",
    "engine",
    required=True,
    type=_Engine(registry.names("optcli.serving.targets")),
    help="The server to write for.",
)
@click.option(
    "--plan",
    type=options.FILE,
    metavar="FILE",
    help="A plan that `optcli plan --json` printed.  [default: a plan for the recipe's `slo`]",
)
@click.option(
    "--out",
    type=options.OUT_PATH,
    metavar="FOLDER",
    help="A new or empty folder.  [default: VARIANT-TARGET]",
)
@click.option("--name", help="The model's name on the server.  [default: the variant's]")
@click.option(
    "--storage-uri",
    metavar="URI",
    help="For kserve: where the cluster finds a copy of the repository, such as pvc://models/digits.",
)
@click.option(
    "--canary-traffic",
    metavar="SHARE",
    help="For kserve: the share of the live requests that VARIANT gets, where another one is served by"
    " the same --name: 10%.",
)
@click.option("--wait", help="For ray: the longest wait for a batch: 10ms.  [default: the plan's]")
@click.option(
    "--priority",
    multiple=True,
    metavar="NAME=SHARE",
    help="Priorities that requests may name, with their shares, the most urgent first."
    "  [default: the plan's]",
)
@click.option(
    "--images",
    is_flag=True,
    help="For ray and triton: also take JPEG and PNG images, and answer classes or boxes.",
)
@click.option(
    "--cache",
    metavar="PLACE",
    help="For ray: keep answers in `memory`, or in a Redis such as redis://127.0.0.1:6379/0.",
)
@click.option("--cache-ttl", metavar="TIME", help="How long an answer is kept.  [default: 1h]")
@click.option(
    "--sample-inputs",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="For ray: keep statistics of N inputs a day, drawn at random, for `optcli loadtest --drift`.",
)
@click.option(
    "--known-answers",
    metavar="URI",
    help="Answers that `optcli infer` wrote with this variant: the cache has them from the start.",
)
@click.option("--grpc", is_flag=True, help="For ray: also speak the protocol over gRPC, on port 9000.")
@click.option(
    "--force",
    is_flag=True,
    help="Deploy although the plan's curve is from another build or from a busy machine or, for ray,"
    " the wait is too short.",
)
@options.artifacts
@options.trust
@options.store
@options.as_json
@options.verbose
def command(
    variant: str,
    where: Path | None,
    engine: str,
    plan: Path | None,
    out: Path | None,
    name: str | None,
    storage_uri: str | None,
    canary_traffic: str | None,
    wait: str | None,
    priority: tuple[str, ...],
    images: bool,
    cache: str | None,
    cache_ttl: str | None,
    sample_inputs: int | None,
    known_answers: str | None,
    grpc: bool,
    force: bool,
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
    from optcli.serving import quantities, targets
    from optcli.serving.deploy import deploy, lines

    given = {
        "storage_uri": storage_uri,
        "canary_traffic": canary_traffic,
        "wait_ms": wait,
        "images": images,
        "cache": cache,
        "sample_inputs": sample_inputs,
        "known_answers": known_answers,
        "grpc": grpc,
    }
    kind = targets.find(engine)
    for option, (said, instead) in _FOR_SOME.items():
        if given[option] in (None, False) or option in kind.takes:
            continue
        message = said.format(engine)
        hint = instead.format(" or ".join(targets.taking(option)))
        message, hint = kind.why_not.get(option, (message, hint))
        raise UsageError(message, place=f"--{option.removesuffix('_ms').replace('_', '-')}", hint=hint)
    if cache_ttl is not None and cache is None:
        raise UsageError("there is no cache", place="--cache-ttl", hint="add --cache memory")
    priorities = quantities.priorities(priority, "--priority")
    place = reports.find(where, artifacts)
    with Progress() as progress:
        deployed = deploy(
            variant,
            place.report,
            place.path,
            out or Path(f"{variant}-{engine}"),
            engine=engine,
            plan=plan,
            recipe=place.recipe,
            name=name,
            storage_uri=storage_uri,
            canary_traffic=None
            if canary_traffic is None
            else quantities.share(canary_traffic, "--canary-traffic"),
            wait_ms=None if wait is None else quantities.milliseconds(wait, "--wait"),
            priorities=priorities,
            images=images,
            cache=cache,
            cache_ttl_s=quantities.seconds("1h" if cache_ttl is None else cache_ttl, "--cache-ttl"),
            sample_inputs=sample_inputs or 0,
            known_answers=known_answers,
            grpc=grpc,
            force=force,
            trust=trust,
            store=place.opened(store),
            observer=progress,
        )
    tell(deployed, lines, as_json=as_json)
