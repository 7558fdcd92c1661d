"""A measuring process that needs no process: it answers as told, on a clock of its own."""

import zlib
from dataclasses import replace
from typing import ClassVar

from optcli.errors import StepError
from optcli.measure.latency.messages import Command, HeldMemory, Opening, Ready, Round, WarmUp


class ScriptedChild:
    """Answers the protocol of `measure.latency.process` for a model that takes `call_ns` nanoseconds.

    Its rounds take `busy` times as long as the warm-up promised. `fails` is the command at which it
    dies: "ready", "open", "warm", "round" or "memory"; `fails_at` at which batch size, `fails_in` in
    which launch. `launch_jitter` is the standard deviation of what its launches differ by, `slowed` how
    many times as slow each of its first launches is.
    """

    turns: ClassVar = []  # (name, command, batch size) of all children, in order
    launches: ClassVar = {}  # how many children of each name there have been

    def __init__(
        self,
        name,
        request,
        call_ns,
        fails=None,
        fails_at=None,
        fails_in=0,
        jitter=0.0,
        launch_jitter=0.0,
        slowed=(),
        busy=1,
        threads=2,
        flags=(),
        steady=True,
        noise=None,
        device_ns=None,
    ):
        import numpy as np

        self.name, self.request = name, request
        self.launch = self.launches[name] = self.launches.get(name, -1) + 1
        self.fails, self.fails_at, self.jitter = fails, fails_at, jitter
        self.dies = self.launch == fails_in
        self.busy, self.threads, self.flags, self.steady = busy, threads, flags, steady
        self.noise, self.device_ns = noise or {}, device_ns
        self.rng = np.random.default_rng(zlib.crc32(f"{name} {self.launch}".encode()))
        self.call_ns = call_ns * (1 + launch_jitter * self.rng.normal())
        if self.launch < len(slowed):
            self.call_ns *= slowed[self.launch]
        self.killed = False
        self.pending = None

    def send(self, command):
        size = command.batch_size or None
        ScriptedChild.turns.append((self.name, command.do, size))
        if self.dies and command.do == self.fails and self.fails_at in (None, size):
            self.pending = StepError("it crashed with a segmentation fault (SIGSEGV)")
        else:
            self.pending = getattr(self, f"do_{command.do}")(command)

    def receive(self, kind, timeout_s=None):
        if isinstance(self.pending, Exception):
            raise self.pending
        assert isinstance(self.pending, kind)
        return self.pending

    result = receive

    def kill(self):
        self.killed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.killed = True

    def do_open(self, command):
        effective = {"precision": "fp32", "threads": self.threads, "flags": list(self.flags)}
        return Opening(100.0, 20.0, effective, self.threads)

    def do_ready(self, command):
        return Ready()

    def do_warm(self, command):
        calls = command.calls * (3 if command.steady else 1)
        return WarmUp(
            first_ms=9.0 + self.launch,
            calls=calls,
            usual_ns=self.call_ns,
            steady_after=calls,
            steady=self.steady if command.steady else None,
            seconds=calls * self.call_ns / 1e9,
        )

    def do_round(self, command):
        scale = self.busy * command.batch_size**0.5
        noise = 1 + self.jitter * self.rng.normal(size=command.calls)
        times = tuple(int(self.call_ns * scale * each) for each in noise)
        round = Round(
            ns=times,
            device_ns=self.device_ns and (self.device_ns,) * len(times),
            cpu_ns=2 * sum(times),
            switches=0,
            steal_s=0.0,
            waited_ns=0,
            first_feed=0,
            feeds=16,
        )
        return replace(round, **self.noise)

    def do_memory(self, command):
        return HeldMemory(peak_memory_bytes=50_000_000)

    def do_end(self, command):
        return None


class ScriptedChannel:
    """The parent's side: gives commands, then the end, and keeps the answers."""

    def __init__(self, *commands):
        self.commands, self.answers = [*commands, Command("end")], []

    def receive(self, kind):
        assert isinstance(self.commands[0], kind)
        return self.commands.pop(0)

    def send(self, record):
        self.answers.append(record)
