"""What a process of `hasten train` takes around its training, whatever the plan.

Arms are forked from a process that has loaded torch and hasten, and save nothing, so they pay for neither. Both are
measured once in a search: a new interpreter imports what `hasten train` and the job's file import; and an arm saves a
checkpoint, as the run does at its end.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from hasten.doctor.profiling.checkpoint_cost import checkpoint_cost
from hasten.errors import HastenError
from hasten.regular_files import read_regular
from hasten.training.run import Run

LONGEST_SECONDS = 120.0  # of importing; the start of a job whose libraries take longer is not counted
IMPORTED_BY_SCRIPTS = ("torch._dynamo",)  # torch imports it with the first optimizer
IMPORTED_BY_TRAIN = ("hasten.cli", "hasten.entry", *IMPORTED_BY_SCRIPTS)
_IMPORTED = re.compile(r"^(?:import|from)\s+(\w[\w.]*)", re.MULTILINE)
_OWN = re.compile(r"^(?:import|from)\s+\.*([\w.]*)(?:\s+import\s+\(?\s*([\w, ]+))?", re.MULTILINE)

LOADED_ONCE = frozenset(
    ("PIL", "numpy", "pandas", "scipy", "skimage", "sklearn", "torch", "torchmetrics", "torchvision")
)
"""Libraries that start no thread, open no device and read no setting when they are imported. They are loaded once, in
the process that arms are forked from; whatever else a job imports, each of its arms loads for itself."""


def import_seconds(libraries: Sequence[str], always: Sequence[str] = IMPORTED_BY_TRAIN) -> float:
    """Of a new interpreter with these libraries, from its start to its end. Where they cannot be imported, of one
    with `always` alone: the job's own file reports what is wrong with them."""
    program = f"import {', '.join((*always, *libraries))}"
    began = time.perf_counter()
    try:
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LONGEST_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return import_seconds([], always) if libraries else 0.0
    return time.perf_counter() - began


def saving_seconds(run: Run, *, keeps_best: bool) -> float:
    """Of the checkpoint that ends the run; 0.0 where none can be saved here. keeps_best: as of checkpoint_cost."""
    try:
        cost = checkpoint_cost(run, keeps_best=keeps_best)
    except HastenError:
        return 0.0
    return cost.stall_seconds + cost.seconds


def libraries_of(job: str) -> list[str]:
    """Dotted names of what the file of a job or script, path/file.py:function, and its own modules import at the begin
    of a line and may be loaded once. A file that cannot be read has none: what runs it reports what is wrong with
    it."""
    names = dict.fromkeys(
        name for text in _own_sources(Path(job.rpartition(":")[0])) for name in _IMPORTED.findall(text)
    )
    firsts = {name: name.partition(".")[0] for name in names}
    return [name for name, first in firsts.items() if first in LOADED_ONCE and find_spec(first) is not None]


def _own_sources(file: Path) -> Iterator[str]:
    """Of a file, and of the modules beside it that it imports, and those import."""
    waiting, seen = [file], set[Path]()
    while waiting:
        module = waiting.pop(0)
        if module in seen:
            continue
        seen.add(module)
        try:
            text = read_regular(module).decode(errors="replace")
        except OSError:
            continue
        yield text
        folders = dict.fromkeys((file.parent, module.parent, _root_of(module)))
        waiting += [path for name in _own_names(text) for folder in folders for path in _files_of(name, folder)]


def _own_names(text: str) -> Iterator[str]:
    for module, names in _OWN.findall(text):
        yield module
        yield from (f"{module}.{name.strip()}".strip(".") for name in names.split(",") if name.strip())


def _files_of(name: str, folder: Path) -> Iterator[Path]:
    """Of a module and the packages that it is in."""
    for part in filter(None, name.split(".")):
        folder /= part
        yield from (path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.is_file())


def _root_of(module: Path) -> Path:
    """The folder that its package is imported from."""
    return next(folder for folder in module.absolute().parents if not (folder / "__init__.py").exists())
