"""One arm in its own process: build it, then run one window for each line that asks for one.

    python bench/child.py path/to/arms.py:function '{"argument": 1}'

The function is called with the arguments and returns `window`, a function that runs a given number of steps, and that
returns their seconds where it does other work between them. Requests come on standard input, `{"steps": 500}` a line;
answers go to standard output, one line each, beginning with one for the build. Whatever the arm itself prints goes to
standard error. Between two requests the process waits in a read.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    sys.path[0] = str(ROOT)  # so that arms find `bench`, and files beside this one hide no module
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        begin = time.perf_counter()
        window = load(sys.argv[1])(**json.loads(sys.argv[2]))
        _settle()
        answer(seconds=time.perf_counter() - begin, threads=_threads())
        for request in sys.stdin:
            steps = json.loads(request)["steps"]
            answer(steps=steps, seconds=_timed(window, steps))
    except BaseException as error:
        answer(failed=type(error).__name__, message=str(error), trace=traceback.format_exc())
    # Not an ordinary exit: a trainer's thread may still wait in the middle of its loop.
    sys.stderr.flush()
    os._exit(0)


def load(entry: str) -> Callable[..., Callable[[int], object]]:
    """The function that `path/to/file.py:function` names."""
    path, _, name = entry.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _timed(window: Callable[[int], object], steps: int) -> float:
    _settle()
    begin = time.perf_counter()
    seconds_of_steps = window(steps)
    _settle()
    return seconds_of_steps if isinstance(seconds_of_steps, float) else time.perf_counter() - begin


def _settle() -> None:
    """Wait for a device's queued work, which would otherwise be billed to the next window, or to nobody."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None


if __name__ == "__main__":
    main()
