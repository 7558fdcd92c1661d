"""The client, in a process of its own: open loop, so that a stalled server cannot hide.

Every request is sent at its planned time, whatever became of those before it, and its latency counts
from that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from optcli.errors import StepError, counted, excerpt, first_line
from optcli.files import regular_files
from optcli.results.loadtest import Encoding
from optcli.serving.loadtest import payloads
from optcli.serving.loadtest.messages import ClientNews, Load, Sent, Setup
from optcli.serving.loadtest.payloads import Payload
from optcli.workers import Channel

if TYPE_CHECKING:
    import aiohttp

# What a status of an answer means for a request; others are named by their number.
CAUSES = {429: "queue_full", 503: "unavailable", 504: "deadline"}
_NEWS_EVERY_S = 0.5
_LATEST_S = 2.0
# A server may close a connection that was idle for five seconds just as it is used again.
_KEPT_ALIVE_S = 3.0
# Of larger answers only a share is compared, so that comparing does not take the client's time.
_MOST_VALUES = 16_384
_FILES = 65_536
# Bodies of answers that are read at one time, and that answers are compared with, have so many bytes.
_MOST_HELD_BYTES, _PIECE_BYTES = 1 << 30, 1 << 18
# A single request that finds the server busy is sent again.
_ATTEMPTS, _AGAIN_S = 3, 0.2


def serve(setup: Setup, channel: Channel) -> ClientNews:
    """Carry out one `Load` after another. Raises `InputError` for samples that do not fit."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, min(_FILES, most)), most))
    _prompt()
    client = _Client(setup)
    channel.send(ClientNews(ready=client.about, cpus=_pinned(setup.cpus)))
    while (load := channel.receive(Load)) is not None:
        channel.send(ClientNews(sent=asyncio.run(client.carry_out(load, channel))))
    return ClientNews()


class _Client:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.samples = payloads.samples_of(setup)
        count = len(next(iter(self.samples.values())))
        self.expected = payloads.expected_of(setup, count)
        self.golden = payloads.golden_of(setup)
        self.made: dict[tuple[str, int], list[Payload]] = {}
        self.references: dict[str, list[Any]] = {}
        if setup.samples is None:
            self.about = f"{counted(count, 'random input')} of seed {setup.seed}"
        else:
            self.about = f"{counted(count, 'sample')} of {setup.samples.name}"
        against = "expected outputs" if self.expected else "first answers of the server"
        self.about += f", answers compared with the {against}"
        if setup.images:
            own = "" if self.golden is None else ", the golden one with its answer"
            images = counted(len(setup.images), "image")
            self.about += f"; {images}, compared with the first answers{own}"

    def payloads_in(self, encoding: Encoding, rows: int = 1) -> list[Payload]:
        """The requests of an encoding, made when first asked for."""
        key = (encoding, rows)
        if key not in self.made:
            self.made[key] = (
                payloads.of_images(self.setup)
                if encoding == "image"
                else payloads.of_tensors(
                    self.setup, self.samples, binary=encoding == "binary", rows=rows
                )
            )
        return self.made[key]

    async def carry_out(self, load: Load, channel: Channel) -> Sent:
        import aiohttp

        to_send = self.payloads_in(load.encoding, load.rows)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_ALIVE_S)
        timeout = aiohttp.ClientTimeout(total=load.timeout_s)
        # Answers come as they are: nothing is unpacked here, and no cookie is kept.
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            if load.encoding not in self.references:
                self.references[load.encoding] = await self._references(load.encoding, session, channel)
            references = self.references[load.encoding]
            run = _LoadRun(load, to_send[: len(references)], references, self.setup, session)
            gc.collect()
            gc.freeze()
            sent = await run.through(np.load(load.times), channel)
        if load.answers is not None:
            np.savez(load.answers, **self._joined(references))
        np.savez(
            load.records,
            planned_ms=run.planned_ms,
            sent_ms=run.sent_ms,
            finished_ms=run.finished_ms,
            cause=run.cause,
            wrong=run.wrong,
            causes=np.array(list(run.causes)),
        )
        return sent

    def _joined(self, given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What answers are compared with, as one array by output. Raises `StepError`."""
        try:
            return {name: np.concatenate([each[name] for each in given]) for name in given[0]}
        except (KeyError, ValueError) as error:
            raise StepError(
                f"the answers to single requests do not have the same outputs: {first_line(error)}",
                place=self.setup.url,
                hint="the server does not speak the Open Inference Protocol v2",
            ) from error

    async def _references(
        self, encoding: Encoding, session: aiohttp.ClientSession, channel: Channel
    ) -> list[Any]:
        """What the answers are compared with: the expected ones, else what the server says first.

        One request at a time, so that a mistake in how it splits batches shows under load. As many as
        fit into memory.
        """
        to_send = self.payloads_in(encoding)
        if self.expected and encoding != "image":
            return self.expected[: len(to_send)]
        references: list[Any] = []
        held, told_s = _Held(), time.monotonic()
        for payload in to_send:
            if held.bytes > payloads.MOST_BYTES:
                break
            if time.monotonic() - told_s > _NEWS_EVERY_S:
                told_s = time.monotonic()
                sampled = f"{len(references)} of {counted(len(to_send), 'sample')} asked one by one"
                channel.send(ClientNews(second=0.0, asked=sampled))
            for _ in range(_ATTEMPTS):
                status, body, headers = await self._sent_alone(payload, session, held)
                if status not in CAUSES:
                    break
                await asyncio.sleep(_AGAIN_S)
            if status != 200:
                raise StepError(
                    f"the server refuses a single request: {status or 'no answer'}:"
                    f" {bytes(body[:300]).decode(errors='replace')}",
                    place=f"{self.setup.url}{payload.path}",
                    hint="send the golden request by hand, or look into the log of the server",
                )
            try:
                if encoding != "image":
                    references.append(payloads.outputs_in(body, headers))
                elif self.golden is not None and payload.sample == 0:
                    references.append(self.golden)
                else:
                    references.append(regular_files.parsed_json(body))
            except ValueError as error:
                raise StepError(
                    str(error),
                    place=f"{self.setup.url}{payload.path}",
                    hint="the server does not speak the Open Inference Protocol v2",
                ) from error
        return references

    async def _sent_alone(
        self, payload: Payload, session: aiohttp.ClientSession, held: _Held
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """The status, the body and the headers of an answer; status 0 and the reason without one."""
        try:
            async with _posted(session, self.setup.url, payload) as answer:
                return answer.status, await held.body_of(answer), answer.headers
        except Exception as error:  # a server can make the library raise anything
            return 0, (str(error) or type(error).__name__).encode(errors="replace"), {}


class _Held:
    """The bodies of answers in memory, whose bytes together have a limit."""

    def __init__(self) -> None:
        self.bytes = 0

    async def body_of(self, answer: aiohttp.ClientResponse) -> bytes:
        """The body of an answer. Raises ValueError where there is no room for it."""
        body = bytearray()
        try:
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                body += piece
                self.bytes += len(piece)
                if self.bytes > _MOST_HELD_BYTES:
                    raise ValueError(f"its answers have more than {_MOST_HELD_BYTES:,} bytes")
        except BaseException:
            self.let_go(len(body))
            raise
        return bytes(body)

    def let_go(self, count: int) -> None:
        """So many bytes are no longer there."""
        self.bytes -= count


def _posted(session: aiohttp.ClientSession, url: str, payload: Payload) -> Any:
    """A request under way; it is not sent elsewhere where the answer says so."""
    place, headers = f"{url}{payload.path}", payload.headers
    return session.post(place, data=payload.body, headers=headers, allow_redirects=False)


class _LoadRun:
    """One load: its records by request, and what happens now."""

    def __init__(
        self,
        load: Load,
        to_send: Sequence[Payload],
        references: Sequence[Any],
        setup: Setup,
        session: aiohttp.ClientSession,
    ) -> None:
        self.load, self.to_send, self.references = load, to_send, references
        self.setup, self.session = setup, session
        self.causes = {"": 0}
        self.latest: deque[tuple[float, float]] = deque()
        self.in_flight = self.most_in_flight = self.failed = self.answered = 0
        self.checked = self.wrongs = 0
        self.held = _Held()
        self.example: str | None = None
        self.received = self.sent_bytes = 0
        self.seen: Counter[int] = Counter()
        values = 1
        if references and isinstance(references[0], dict) and load.encoding != "image":
            values = sum(array.size for array in references[0].values())
        self.every = -(-values // _MOST_VALUES)

    async def through(self, planned_ms: Any, channel: Channel) -> Sent:
        count = planned_ms.size
        order = np.arange(count) if self.load.samples is None else np.load(self.load.samples)
        self.order = (order % len(self.to_send)).tolist()
        self.planned_ms = planned_ms
        self.sent_ms = np.full(count, np.nan)
        self.finished_ms = np.full(count, np.nan)
        self.cause = np.zeros(count, dtype=np.int16)
        self.wrong = np.zeros(count, dtype=bool)
        self.begin = time.perf_counter() + 0.05
        cpu = time.process_time()
        telling = asyncio.create_task(self._tell(channel))
        tasks = set()
        try:
            for index, at_ms in enumerate(planned_ms.tolist()):
                wait_s = self.begin + at_ms / 1000 - time.perf_counter()
                # Behind its plan the client still reads what has come.
                await asyncio.sleep(max(0.0, wait_s))
                task = asyncio.create_task(self._one(index))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            while tasks:  # each has its own timeout
                await asyncio.wait(tasks)
        finally:
            telling.cancel()
        sent = max(1, count - self._count("in_flight"))
        return Sent(
            seconds=time.perf_counter() - self.begin,
            cpu_s=time.process_time() - cpu,
            bytes_sent=self.sent_bytes / sent,
            bytes_received=self.received / max(1, self.answered),
            most_in_flight=self.most_in_flight,
            checked=self.checked,
            wrong=self.wrongs,
            wrong_example=self.example,
        )

    async def _one(self, index: int) -> None:
        payload = self.to_send[self.order[index]]
        if self.in_flight >= self.setup.most_in_flight:
            self._fail(index, "in_flight")
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.sent_ms[index] = self._now_ms()
        self.sent_bytes += len(payload.body)
        try:
            async with _posted(self.session, self.setup.url, payload) as answer:
                body = await self.held.body_of(answer)
                status, headers = answer.status, answer.headers
            self.held.let_go(len(body))
            self._finish(index)
            if status == 200:
                self._check(index, payload.sample, body, headers)
            else:
                self._fail(index, CAUSES.get(status, f"http_{status}"))
        except TimeoutError:
            self._finish(index)
            self._fail(index, "timeout")
        except Exception:  # a server can make the library raise anything
            self._finish(index)
            self._fail(index, "connection")
        finally:
            self.in_flight -= 1

    def _check(self, index: int, sample: int, body: bytes, headers: Any) -> None:
        self.answered += 1
        self.received += len(body)
        self.seen[sample] += 1
        if self.load.rows > 1 or (self.seen[sample] - 1) % self.every:
            return
        self.checked += 1
        tolerance, wanted = self.setup.tolerance, self.references[sample]
        try:
            if self.load.encoding == "image":
                why = payloads.json_difference(regular_files.parsed_json(body), wanted, tolerance)
            else:
                why = payloads.difference(payloads.outputs_in(body, headers), wanted, tolerance)
        except ValueError as error:
            why = str(error)
        except Exception as error:  # what the server says can be of any form
            why = f"the answer cannot be compared: {type(error).__name__}"
        if why is not None:
            self.wrong[index] = True
            self.wrongs += 1
            self.example = self.example or f"sample {sample}: {excerpt(why, 300)}"

    def _now_ms(self) -> float:
        return 1000 * (time.perf_counter() - self.begin)

    def _finish(self, index: int) -> None:
        now = self._now_ms()
        self.finished_ms[index] = now
        self.latest.append((now, now - self.planned_ms[index]))

    def _fail(self, index: int, cause: str) -> None:
        self.failed += 1
        self.cause[index] = self.causes.setdefault(cause, len(self.causes))

    def _count(self, cause: str) -> int:
        number = self.causes.get(cause)
        return 0 if number is None else int((self.cause == number).sum())

    async def _tell(self, channel: Channel) -> None:
        """Live figures for the progress bar."""
        while True:
            await asyncio.sleep(_NEWS_EVERY_S)
            now = self._now_ms()
            while self.latest and self.latest[0][0] < now - 1000 * _LATEST_S:
                self.latest.popleft()
            latencies = [latency for _, latency in self.latest]
            channel.send(
                ClientNews(
                    second=now / 1000,
                    answered_per_s=len(latencies) / min(_LATEST_S, max(now / 1000, 0.1)),
                    p95_ms=float(np.quantile(latencies, 0.95)) if latencies else None,
                    failed=self.failed,
                )
            )


def _prompt() -> None:
    """Go before other processes of a shared processor, where the user may: it then sends in time."""
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))


def _pinned(cpus: Sequence[int]) -> tuple[int, ...]:
    """Run on these processors alone; gives those that it runs on."""
    import psutil

    process = psutil.Process()
    if not hasattr(process, "cpu_affinity"):
        return ()
    if cpus:
        process.cpu_affinity(list(cpus))
    return tuple(process.cpu_affinity())
