"""Lines of the user's at which Python waits for all work that is queued on a GPU, as torch reports them.

Source: https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_sync_debug_mode.html
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hasten.scripts.observing.calls import users_calls

_REPORT = "called a synchronizing CUDA operation"


@contextmanager
def syncs_counted() -> Iterator[Counter[tuple[str, int]]]:
    """File and line -> how often, until the end of the context."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with sync_reports_counted() as found:
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def sync_reports_counted() -> Iterator[Counter[tuple[str, int]]]:
    """Of torch's warnings, which this context does not print."""
    found = Counter[tuple[str, int]]()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=_REPORT)
        shown = warnings.showwarning

        def count(message: Any, *args: Any, **named: Any) -> None:
            if not str(message).startswith(_REPORT):
                shown(message, *args, **named)
            elif calls := users_calls():
                found[calls[0].file, calls[0].line] += 1

        warnings.showwarning = count
        yield found
