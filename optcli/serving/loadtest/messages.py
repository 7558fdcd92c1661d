"""What the load test and its client process tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optcli.results.loadtest import Encoding


@dataclass(frozen=True)
class TensorAbout:
    """A tensor by its metadata: datatype as the protocol writes it, -1 for a size that varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Setup:
    """All that a client needs to know for every load.

    `samples` and `expected` are npz files: arrays by name, the first axis is the sample; without
    samples the inputs are `random_samples` random ones of `seed`. `images` are files whose bytes are
    posted; `golden_answer` is the file of the expected answer to the first. `tolerance` is the largest
    difference of an answer, as a share of the largest magnitude of the expected output. `cpus` are the
    processors that the client shall run on; empty: all.
    """

    url: str
    model: str
    inputs: tuple[TensorAbout, ...]
    outputs: tuple[str, ...]
    samples: Path | None = None
    expected: Path | None = None
    images: tuple[Path, ...] = ()
    golden_answer: Path | None = None
    tolerance: float = 1e-3
    random_samples: int = 16
    seed: int = 0
    cpus: tuple[int, ...] = ()
    most_in_flight: int = 2000


@dataclass(frozen=True)
class Load:
    """Send requests at the times [requests] of the file `times`, milliseconds from the start.

    `records` is where the client writes what came of each. A request that is not answered within
    `timeout_s` has failed. `samples` [requests] is a file of which sample each request holds, modulo
    their number; None: one after the other. A request has `rows` rows; with several, answers are not
    compared. `answers` is where the client writes what answers are compared with, arrays [samples, ...]
    by output.
    """

    times: Path
    records: Path
    encoding: Encoding
    timeout_s: float
    samples: Path | None = None
    rows: int = 1
    answers: Path | None = None


@dataclass(frozen=True)
class Sent:
    """What a load was like for the client: means over requests, `cpu_s` its processor time."""

    seconds: float
    cpu_s: float
    bytes_sent: float
    bytes_received: float
    most_in_flight: int
    checked: int
    wrong: int
    wrong_example: str | None


@dataclass(frozen=True)
class ClientNews:
    """One event of the client.

    `ready` says what it will send, once; `asked` how many samples were asked for before the load;
    `second` is how far a load is, with the figures of the last two seconds; `sent` ends a load.
    """

    ready: str | None = None
    cpus: tuple[int, ...] = ()
    asked: str = ""
    second: float | None = None
    answered_per_s: float = 0.0
    p95_ms: float | None = None
    failed: int = 0
    sent: Sent | None = None
