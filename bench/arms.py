"""Run the arms of a benchmark in turns: each in its own process, and only one of them at any time.

Every arm is built and warmed up once a start; after that it waits for its turns. A round gives every arm one window,
and every other round goes backwards (A B B A …). Building and warming up are timed and reported, never hidden in a
ratio. An arm that fails ends the benchmark with the class of its error: a comparison with a missing side is none.

Between its turns an arm is stopped, with every process that it started. Left to itself, a loader would go on after its
window until its queues are full: that slows whoever is next, and at its own next turn it finds seconds of work done.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import IO, Any

from bench.guard import guarded, signal_group

from hasten.errors import Hang, InvalidMeasurement, UserCodeFailed
from hasten.measure.paired_timing import LEAST_PAIRS, Comparison, Window, compare, interleaved

ROOT = Path(__file__).resolve().parent.parent
LEAST_STEPS, LEAST_SECONDS = 50, 2.0  # a window satisfies one of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """entry: `path/to/file.py:function`; the function returns window(steps). arguments: what JSON can carry.
    steps: of a window, for an arm so fast that the protocol's would not last. python: the interpreter, for an arm
    with an environment of its own. tree: a checkout of hasten that the arm runs; None: this one."""

    name: str
    entry: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    steps: int | None = None
    python: str | None = None
    tree: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OneOff:
    """What an arm cost before its first timed step; where it was started several times, the middle of each."""

    arm: str
    build_seconds: float
    warmup_seconds: float
    warmup_steps: int
    threads: int | None  # compute threads inside one operation; None when the arm never loaded torch

    @property
    def seconds(self) -> float:
        return self.build_seconds + self.warmup_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    windows: tuple[Window, ...]  # in the order they ran
    one_off: tuple[OneOff, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """starts: how often every arm is started anew, for steps so short that where a process's memory lies can be seen in
    them. rounds: of windows in each start. Any two arms have one pair a round, or one a start where there are several.
    threads: compute threads of every arm, which is bound to as many cores; None: torch's own number, and all cores.
    limit_seconds: for one answer of an arm, its build included. together: whether all arms are built at the same time,
    where there are cores for that: what each takes to build is then no figure to compare. seconds: that a window is to
    last, by a first one that is not counted; None: a window is of so many steps."""

    starts: int = 1
    rounds: int = 16
    steps: int = 1000
    warmup_steps: int = 200
    threads: int | None = None
    limit_seconds: float = 900.0
    together: bool = False
    seconds: float | None = None

    @property
    def pairs(self) -> int:
        return self.rounds if self.starts == 1 else self.starts


def run_arms(arms: Sequence[Arm], protocol: Protocol) -> Measured:
    """Raises UserCodeFailed when an arm raises or dies, Hang when it does not answer, and InvalidMeasurement when a
    window is both shorter than 50 steps and than 2 seconds."""
    if len({arm.name for arm in arms}) != len(arms):
        raise InvalidMeasurement("two arms have the same name", fix="give each arm its own name")
    windows, one_off = list[Window](), list[OneOff]()
    for start in range(protocol.starts):
        found = _one_start(_rotated(arms, start), protocol)
        windows += [replace(window, start=start) for window in found.windows]
        one_off += found.one_off
    return Measured(windows=tuple(windows), one_off=tuple(_middle(arm.name, one_off) for arm in arms))


def _rotated(arms: Sequence[Arm], start: int) -> list[Arm]:
    """Another arm first in every start: where the order turns round, an arm follows itself and finds warm caches."""
    first = start % len(arms)
    return [*arms[first:], *arms[:first]]


def _one_start(arms: Sequence[Arm], protocol: Protocol) -> Measured:
    with contextlib.ExitStack() as children:
        running, one_off = dict[str, _Child](), list[OneOff]()
        begun = ((arm.name, children.enter_context(_running(arm, protocol))) for arm in arms)
        for name, child in list(begun) if protocol.together else begun:
            running[name] = child
            one_off.append(_prepare(name, child, protocol))
        costs = {cost.arm: cost for cost in one_off}
        steps = {arm.name: arm.steps or _steps(protocol, running[arm.name], costs[arm.name]) for arm in arms}
        windows = [
            _window(name, running[name], steps[name], lengthened=protocol.seconds is not None)
            for name in interleaved([arm.name for arm in arms], protocol.rounds)
        ]
    return Measured(windows=tuple(windows), one_off=tuple(one_off))


def _steps(protocol: Protocol, child: _Child, cost: OneOff) -> int:
    """The first steps of all are slow ones, so that the warm-up alone says too little."""
    if protocol.seconds is None:
        return protocol.steps
    if not cost.warmup_steps:
        raise InvalidMeasurement("windows of so many seconds begin with steps that warm up", fix="set warmup_steps")
    tried = math.ceil(protocol.seconds * cost.warmup_steps / cost.warmup_seconds)
    return math.ceil(protocol.seconds * tried / child.window(tried))


def _window(name: str, child: _Child, steps: int, *, lengthened: bool) -> Window:
    """lengthened: a machine can be faster than when the steps of two seconds were counted."""
    found = Window(arm=name, steps=steps, seconds=child.window(steps))
    while lengthened and _is_short(found):
        more = math.ceil((LEAST_SECONDS - found.seconds) / found.seconds_per_step)
        found = replace(found, steps=found.steps + more, seconds=found.seconds + child.window(more))
    if _is_short(found):
        raise InvalidMeasurement(
            f"a window of {found.steps} steps took {found.seconds:.3g} s",
            where=name,
            fix=f"run at least {LEAST_STEPS} steps or {LEAST_SECONDS:.0f} s a window",
        )
    return found


def _is_short(window: Window) -> bool:
    return window.steps < LEAST_STEPS and window.seconds < LEAST_SECONDS


def _middle(name: str, one_off: Sequence[OneOff]) -> OneOff:
    mine = [cost for cost in one_off if cost.arm == name]
    return replace(
        mine[0],
        build_seconds=median(cost.build_seconds for cost in mine),
        warmup_seconds=median(cost.warmup_seconds for cost in mine),
    )


def control(arm: Arm, protocol: Protocol) -> Comparison:
    """The same arm against itself, in two processes. Where it finds a difference, this machine cannot judge now: the
    caller refuses to go on, or publishes the failed control with the result."""
    if protocol.pairs < LEAST_PAIRS:
        raise InvalidMeasurement(
            f"the protocol gives {protocol.pairs} pairs", fix=f"let it have at least {LEAST_PAIRS} rounds, or starts"
        )
    again = replace(arm, name=f"{arm.name} again")
    measured = run_arms([arm, again], protocol)
    return compare(measured.windows, baseline=arm.name, challenger=again.name)


def refuse_noise(found: Comparison) -> None:
    """Raises InvalidMeasurement when a control found a difference between an arm and itself."""
    if found.differs:
        raise InvalidMeasurement(
            f"the same code measured against itself is {found.speedup}, which excludes 1",
            where=f'control of "{found.baseline}"',
            fix="let nothing else run on the machine, or take longer windows, and start again",
        )


class _Child:
    """The parent's end of one arm's process."""

    def __init__(self, arm: Arm, process: subprocess.Popen[str], said: IO[str], limit_seconds: float) -> None:
        self._arm, self._process, self._said, self._limit_seconds = arm, process, said, limit_seconds

    def built(self) -> dict[str, Any]:
        with self._awake():
            return self._answer()

    def window(self, steps: int) -> float:
        assert self._process.stdin is not None
        with self._awake():
            print(json.dumps({"steps": steps}), file=self._process.stdin, flush=True)
            return self._answer()["seconds"]

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        signal_group(self._process.pid, signal.SIGCONT)
        yield
        signal_group(self._process.pid, signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self._limit_seconds)
        if not ready:
            raise Hang(f"gave no answer within {self._limit_seconds:.0f} s", where=self._place)
        line = self._process.stdout.readline()
        if not line:
            raise UserCodeFailed(f"died: {_ending(self._process.wait())}{self._last_words()}", where=self._place)
        answer = json.loads(line)
        if "failed" in answer:
            raise UserCodeFailed(
                f"{answer['failed']}: {answer['message']}\n{answer['trace']}",
                where=self._place,
                fix="run the arm alone, mend it, and start the benchmark again",
            )
        return answer

    @property
    def _place(self) -> str:
        return f'arm "{self._arm.name}"'

    def _last_words(self) -> str:
        self._said.seek(0)
        return "".join(f"\n{line.rstrip()}" for line in self._said.readlines()[-20:])


@contextlib.contextmanager
def _running(arm: Arm, protocol: Protocol) -> Iterator[_Child]:
    path, _, function = arm.entry.rpartition(":")
    entry = f"{Path(path).resolve()}:{function}"
    tree = arm.tree or ROOT
    environment = dict(os.environ)
    if arm.tree is not None:
        environment["PYTHONPATH"] = str(tree / "src")
    if protocol.threads is not None:
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(protocol.threads))
    # What a peer leaves in its working directory goes with it; what it says is shown only when it dies.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            [arm.python or sys.executable, str(tree / "bench" / "child.py"), entry, json.dumps(dict(arm.arguments))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            with guarded(process.pid):
                _pin(process.pid, protocol.threads)
                yield _Child(arm, process, said, protocol.limit_seconds)
        finally:
            process.kill()  # where no guard could be started
            with contextlib.suppress(BrokenPipeError):
                process.communicate()


def _pin(process: int, threads: int | None) -> None:
    """As many cores as it has threads: a process that the kernel moves to another core finds no cache there."""
    if threads is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process, sorted(os.sched_getaffinity(0))[-threads:])


def _prepare(name: str, child: _Child, protocol: Protocol) -> OneOff:
    built = child.built()
    warmup_seconds = child.window(protocol.warmup_steps) if protocol.warmup_steps else 0.0
    return OneOff(
        arm=name,
        build_seconds=built["seconds"],
        warmup_seconds=warmup_seconds,
        warmup_steps=protocol.warmup_steps,
        threads=built["threads"],
    )


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
