"""Checks of the modules that a job returns and declares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hasten.errors import JobError
from hasten.facts.job import describe


def check_made(model: Any) -> nn.Module:
    """The same module. Raises JobError for anything else, and for a lazy module without its sizes."""
    if not isinstance(model, nn.Module):
        raise JobError("model", f"returned {describe(model)}", "return a torch.nn.Module")
    lazy = _first_lazy((*model.named_parameters(), *model.named_buffers()))
    if lazy is not None:
        raise JobError(
            "model",
            f"returned a model whose {lazy} is not initialized, as its size shows in the first forward only",
            "run one forward in Job.model before it returns the model, such as model(torch.zeros(1, 8))",
        )
    return model


def check_made_of_loss(modules: Iterable[nn.Module]) -> None:
    """modules: that the job declares. Raises JobError for a lazy module without its sizes."""
    for module in modules:
        lazy = _first_lazy((*module.named_parameters(), *module.named_buffers()))
        if lazy is not None:
            raise JobError(
                "state",
                f"holds a {type(module).__name__} whose {lazy} is not initialized, as its size shows in the first "
                "forward only",
                "run one forward of it before the job is returned, such as teacher(torch.zeros(1, 8))",
            )


def _first_lazy(tensors: Iterable[tuple[str, Tensor | None]]) -> str | None:
    return next((name for name, each in tensors if each is not None and is_lazy(each)), None)
