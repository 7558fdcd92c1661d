"""The README beside what was deployed: the three commands that matter, and what is to be known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optcli.serving.bundle import BundlePriority
from optcli.serving.deploy.interface import REQUEST, RESPONSE, Interface
from optcli.serving.deploy.model_configuration import ServedModel

# A release of Triton that exists; whoever serves takes the one with the runtimes that were measured.
IMAGE = "nvcr.io/nvidia/tritonserver:26.04-py3"
_URL = "localhost:8000/v2/models"
_CURL = "curl --fail --silent --show-error"


@dataclass(frozen=True)
class ReadmeStep:
    """One command and what it does."""

    title: str
    command: str


def for_triton(served: ServedModel) -> list[ReadmeStep]:
    """Start the server in the folder, ask whether the model is ready, send the golden request."""
    device = served.backend.device
    gpus = "" if device is None else f"--gpus '\"device={device}\"' " if device else "--gpus 1 "
    variables = "".join(f"-e {name}={value} " for name, value in served.backend.environment.items())
    start = (
        f"docker run --rm {gpus}{variables}-p 127.0.0.1:8000:8000"
        f' -v "$PWD":/models:ro {IMAGE} tritonserver --model-repository=/models'
        " --disable-auto-complete-config"
    )
    return for_server(start, served.name, served.interface)


def for_server(start: str, model: str, interface: Interface) -> list[ReadmeStep]:
    """Start a server by a command, ask whether the model is ready, send the golden request."""
    return [
        ReadmeStep("Start the server, in this folder", start),
        ReadmeStep("Ask whether the model is ready", f"{_CURL} {_URL}/{model}/ready"),
        *_request(interface, f"{_URL}/{model}/infer"),
    ]


def for_kserve(served: ServedModel, name: str, manifests: Sequence[str]) -> list[ReadmeStep]:
    """Apply the manifests, wait until the object `name` is ready, send the golden request."""
    files = " ".join(f"-f {file}" for file in manifests)
    wait = f"kubectl wait --for=condition=Ready inferenceservice/{name} --timeout=600s"
    url = f"$(kubectl get inferenceservice {name} -o jsonpath={{.status.url}})"
    return [
        ReadmeStep("Apply the manifests", f"kubectl apply {files}"),
        ReadmeStep("Wait until the model is ready", wait),
        *_request(served.interface, f'"{url}/v2/models/{served.name}/infer"'),
    ]


def _request(interface: Interface, url: str) -> list[ReadmeStep]:
    if interface.golden is None:
        return []
    header = "--header 'Content-Type: application/json'"
    return [ReadmeStep("Send a request", f"{_CURL} {header} --data @{REQUEST} {url}")]


def for_images(steps: Sequence[ReadmeStep], ensemble: str, golden: str | None) -> list[ReadmeStep]:
    """The steps of Triton with an image of its own, which has what the ensemble's models import."""
    start, *others = steps
    own = f"{ensemble}-server"
    sent = ReadmeStep(
        "Send an image (needs `pip install 'tritonclient[http]'`)",
        f"python send_image.py {ensemble} {golden or 'IMAGE'}",
    )
    return [
        ReadmeStep("Build an image of Triton that has NumPy and Pillow", f"docker build -t {own} ."),
        ReadmeStep(start.title, start.command.replace(IMAGE, own)),
        *others,
        sent,
    ]


def for_ray(
    model: str,
    interface: Interface,
    image: str | None = None,
    priorities: Sequence[BundlePriority] = (),
) -> list[ReadmeStep]:
    """Start the bundle in the folder, ask whether the model is ready, send the golden request.

    `image` is a golden image, where the server takes images.
    """
    request = _request(interface, f"{_URL}/{model}/infer")
    for each in priorities[:-1]:
        url = f"localhost:8000{each.route}/v2/models/{model}/infer"
        request += [
            ReadmeStep(f"{one.title} with the priority {each.name}", one.command)
            for one in _request(interface, url)
        ]
    if image is not None:
        request.append(
            ReadmeStep("Send an image", f"{_CURL} --data-binary @{image} {_URL}/{model}/images")
        )
    return [
        ReadmeStep("Start the server, in this folder", "python launch.py --port 8000"),
        ReadmeStep("Ask whether the model is ready", f"{_CURL} {_URL}/{model}/ready"),
        *request,
    ]


def of_triton(runtime: str) -> list[str]:
    """What is to be known of every repository; `runtime` is what the variant was measured with."""
    return [
        f"the variant was measured with {runtime}. Use a Triton release with this runtime or a newer"
        f" one: put its image in place of {IMAGE} in the command above",
        "no Triton server ran this repository before it was written. config.pbtxt was read back with"
        " Triton's own protobuf definition and compared with the model",
        "the server has no authentication and no TLS: put a proxy with both in front of it",
    ]


def text(
    name: str, interface: Interface, about: str, steps: Sequence[ReadmeStep], notes: Sequence[str]
) -> str:
    """The README of the model `name`, as Markdown."""
    lines = [f"# {name}", "", about, ""]
    for step in steps:
        lines += [f"{step.title}:", "", "```bash", step.command, "```", ""]
    lines += _golden(interface)
    lines += ["## What you should know", ""]
    lines += [f"- {note[0].upper()}{note[1:]}." for note in notes]
    return "\n".join([*lines, ""])


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
