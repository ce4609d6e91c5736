"""Runs a copy of a script as Python itself runs it, and reads the losses of its first steps:
python -m hasten.scripts.trials.plain_run ASKED, which is a PlainRun as JSON.

Nothing of a trial acts here: the process is Python's own, the script loads torch itself, and no random number is seeded
unless that is asked for. Added are a function that keeps each loss, a hook behind each update that keeps the time, and
the guard of the user's files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.checkpoint.files import move, replace_file
from hasten.scripts.observing.loss_value import loss_value
from hasten.scripts.observing.main_optimizer import MainOptimizer
from hasten.scripts.patching import replaced
from hasten.scripts.running.program import program_of, run
from hasten.scripts.running.terminal_input import use_terminal
from hasten.scripts.trials.scratch import Scratch
from hasten.scripts.trials.write_guard import save_by_python
from hasten.tuning.trials.process_tree import die_with
from hasten.users_code import reason_of


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainRun:
    """roots, place, folder, prepared: of its Scratch. words: of its program. main: the number of the optimizer whose
    updates are steps. updates: so many, or to the script's end, as a rank does that the others need. untimed: updates
    before those whose times are asked for. is_seeded: all random numbers begin from seed 0. answer: the file for a
    PlainSteps."""

    roots: dict[str, str]
    place: str
    folder: str
    prepared: str
    words: list[str]
    main: int
    updates: int | None
    untimed: int
    is_seeded: bool
    answer: str
    parent: int

    def scratch(self) -> Scratch:
        roots = {Path(users): Path(copy) for users, copy in self.roots.items()}
        place, folder, program = Path(self.place), Path(self.folder), program_of(self.words)
        return Scratch(place=place, roots=roots, program=program, folder=folder, prepared=self.prepared)


@dataclass(kw_only=True, slots=True)
class PlainSteps:
    """losses: of each step, those of all its backward passes, of a tensor the mean. times: of each update, by
    time.perf_counter(). failed: what the script raised; empty where it raised nothing. ended: by time.monotonic()."""

    losses: list[list[float]] = field(default_factory=list[list[float]])
    times: list[float] = field(default_factory=list[float])
    failed: str = ""
    ended: float = 0.0


class _Reader:
    def __init__(self, asked: PlainRun) -> None:
        self._asked, self._steps = asked, PlainSteps()
        self._losses = list[list[Any]]([[]])  # numbers or tensors, which are read at the end
        self._main = MainOptimizer(number=asked.main)
        self._patches = ExitStack()

    def start(self) -> None:
        """Once torch is loaded."""
        import torch
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_post_hook

        save_by_python()
        self._patches.enter_context(replaced(Optimizer, "__init__", self._made))
        self._patches.enter_context(replaced(torch.autograd, "backward", self._backward))
        register_optimizer_step_post_hook(self._updated)

    def end(self, failed: str = "") -> None:
        """The process ends with the answer: what the script has started ends with it."""
        self._steps.failed, self._steps.ended = failed, time.monotonic()
        self._steps.losses = [[float(loss) for loss in step] for step in self._losses[: len(self._steps.times)]]
        answer = Path(self._asked.answer)
        unfinished = answer.with_suffix(".unfinished")
        replace_file(unfinished, json.dumps(asdict(self._steps)).encode())
        move(unfinished, answer)  # a reader must not find a part of it
        os._exit(0)

    def _made(self, original: Callable[..., None], made: Any, *args: Any, **named: Any) -> None:
        original(made, *args, **named)
        self._main.is_made(made)

    def _backward(self, original: Callable[..., None], tensors: Any, *args: Any, **named: Any) -> None:
        loss = tensors if hasattr(tensors, "numel") else next(iter(tensors))
        self._losses[-1].append(loss_value(loss))
        original(tensors, *args, **named)

    def _updated(self, optimizer: Any, args: Any, named: Any) -> None:
        if optimizer is not self._main.optimizer:
            return
        self._main.updates += 1
        if self._main.updates in (self._asked.untimed, self._asked.updates):
            _settle()
        self._steps.times.append(time.perf_counter())
        self._losses.append([])
        if self._main.updates == self._asked.updates:
            self.end()


def _settle() -> None:
    """Wait for the device, if the script uses one. The times between two such updates have the mean of a step."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class _AfterImport:
    """A finder of modules that acts once, when a module has been loaded. Libraries also look for it without loading it,
    as importlib.util.find_spec does."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act, self._is_asking = name, act, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, self._loaded)
        return spec

    def _loaded(self) -> None:
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]
        self._act()


class _ActingLoader(Loader):
    def __init__(self, loader: Any, act: Callable[[], None]) -> None:
        self._loader, self._act = loader, act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act()


def main() -> None:
    asked = PlainRun(**json.loads(sys.argv[1]))
    die_with(asked.parent)
    scratch, reader = asked.scratch(), _Reader(asked)
    scratch.enter()
    use_terminal()
    if asked.is_seeded:
        from hasten.scripts.running.script_seeds import use_seed
        from hasten.scripts.running.thread_variables import heed_thread_variables

        use_seed(int(os.environ.get("RANK", "0")))
        heed_thread_variables()
        reader.start()
    else:
        sys.meta_path.insert(0, _AfterImport("torch", reader.start))
    try:
        run(scratch.program)
    except SystemExit as end:
        reader.end("" if end.code in (None, 0) else f"ended with exit code {end.code}")
    except BaseException as error:  # of the script, whatever it is
        reader.end(reason_of(error) if isinstance(error, Exception) else type(error).__name__)
    reader.end()


if __name__ == "__main__":
    main()
