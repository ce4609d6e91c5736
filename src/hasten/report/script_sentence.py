"""What was found in a training script, for the lines above a search."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from hasten.facts.formatting import byte_size
from hasten.report.display import listed, many

if TYPE_CHECKING:
    from hasten.facts.scripts.seen import Seen, Stack
    from hasten.report.terminal.output import Lines


def found_lines(seen: Seen, place: Callable[[str, int], str]) -> Lines:
    """Label and text: prepared data, loader, model, optimizers, step, and the length of the training. place: (file,
    line) -> as a reader finds it."""

    def at(calls: Stack) -> str:
        return f" ({place(calls[0].file, calls[0].line)})" if calls else ""

    loader, model = seen.loader, seen.model
    lines: Lines = []
    if seen.prepared is not None:
        paths = listed([os.path.relpath(each) for each in seen.prepared.paths])
        size = byte_size(seen.prepared.size_bytes)
        what = f"the script wrote {paths} ({size}) before its first step"
        lines.append(("prepared", f"{what}; trials share this copy, which is removed at the end"))
    if loader is None:
        lines.append(("loader", "none: the steps read no DataLoader"))
    else:
        size = "" if loader.batch_size is None else f", batches of {loader.batch_size:,}"
        workers = many(loader.workers, "worker") if loader.workers else "no workers"
        lines.append(("loader", f"{loader.kind} of {loader.dataset}{size}, {workers}{at(loader.made)}"))
    trained = "" if model.trained == model.parameters else f", of which {model.trained:,} are trained"
    lines.append(("model", f"{model.kind}, {many(model.parameters, 'parameter')}{trained}{at(model.called)}"))
    optimizers = ", ".join(f"{each.kind}{at(each.made)}" for each in seen.optimizers)
    lines.append(("optimizer", optimizers))
    lines.append(("backward", at(seen.backward).strip(" ()")))
    return [*lines, ("length", _length(seen))]


def _length(seen: Seen) -> str:
    length = seen.length
    if length.steps is None:
        return f"not known: {length.why}"
    epochs = "" if length.epochs is None else f"{many(length.epochs, 'epoch')}, "
    again = f"; a later call, of {length.again}, is not counted" if length.again else ""
    return f"{epochs}{many(length.steps, 'step')}{again}"
