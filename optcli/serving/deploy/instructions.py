"""The README beside a model repository: the three commands that matter, and what is to be known."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.serving.deploy.interface import REQUEST, RESPONSE, Interface
from optcli.serving.deploy.model_configuration import Served

# A release of Triton that exists; whoever serves takes the one with the runtimes that were measured.
_IMAGE = "nvcr.io/nvidia/tritonserver:26.04-py3"
_URL = "localhost:8000/v2/models"


def commands_of(served: Served) -> list[str]:
    """Start the server in this folder, ask whether the model is ready, send the golden request."""
    gpus = "--gpus 1 " if served.backend.gpu else ""
    commands = [
        f'docker run --rm {gpus}-p 127.0.0.1:8000:8000 -v "$PWD":/models:ro {_IMAGE}'
        " tritonserver --model-repository=/models --disable-auto-complete-config",
        f"curl --fail --silent --show-error {_URL}/{served.name}/ready",
    ]
    if served.interface.golden is not None:
        commands.append(
            "curl --fail --silent --show-error --header 'Content-Type: application/json'"
            f" --data @{REQUEST} {_URL}/{served.name}/infer"
        )
    return commands


def text(served: Served, sentence: str, notes: Sequence[str], runtime: str) -> str:
    """The README, as Markdown."""
    commands = commands_of(served)
    titles = ("Start the server, in this folder", "Ask whether the model is ready", "Send a request")
    lines = [
        f"# {served.name}",
        "",
        f"A model repository for Triton, written by optcli. {sentence}",
        "",
    ]
    for title, command in zip(titles, commands, strict=False):
        lines += [f"{title}:", "", "```bash", command, "```", ""]
    lines += _golden(served.interface)
    lines += ["## What is to be known", ""]
    lines += [f"- {note[0].upper()}{note[1:]}." for note in notes]
    lines += [
        f"- The variant was measured with {runtime}. Take a release of Triton whose runtime is not"
        " older: replace the one in the first command.",
        "- Nobody ran this repository in a Triton server before it was written. config.pbtxt was"
        " read back with Triton's own protobuf definition and compared with the model.",
        "- The server has no authentication and no TLS. The first command opens it to this machine"
        " alone: put a proxy with both in front of it.",
        "",
    ]
    return "\n".join(lines)


def _golden(interface: Interface) -> list[str]:
    if interface.golden is None or interface.tolerance is None:
        reason = (
            "the model could not be run where this was written"
            if not interface.computed
            else "JSON of the Open Inference Protocol cannot hold its types"
        )
        return [f"There is no golden request: {reason}.", ""]
    return [
        f"`{REQUEST}` holds {interface.golden}, and `{RESPONSE}` what the variant's own runner",
        f"gives for it. No value should differ from it by more than {interface.tolerance:g} times the",
        "largest magnitude in its output.",
        "",
    ]
