"""Private names of torch that the profile needs and that have no public replacement. Checked with torch 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._logging._internal import log_state
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["TorchDispatchMode", "tree_leaves", "tree_map"]

ENGINE = "_engine_run_backward"  # the function of torch.autograd in which all backward passes run
_LOGGING = ("symbolic_convert", "convert_frame", "exc", "guards")  # modules of Dynamo
LOGGERS = [f"torch._dynamo.{module}.__{kind}" for module in _LOGGING for kind in ("graph_breaks", "recompiles")]


def name_of(operator: Any) -> str:
    """ "aten::add": higher-order operators have no schema."""
    return operator._schema.name if hasattr(operator, "_schema") else operator.name()


@contextmanager
def recompilations_logged() -> Iterator[None]:
    """Dynamo logs the reason of a recompilation only where its log artifact is on."""
    enabled = log_state.artifact_names
    was_on = "recompiles" in enabled
    enabled.add("recompiles")
    try:
        yield
    finally:
        if not was_on:
            enabled.discard("recompiles")
