"""What Job.model has returned, looked at before anything is done with it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from hasten.errors import JobError
from hasten.facts.job import describe


def check_made(model: Any) -> nn.Module:
    """The same module. Raises JobError where it is none, or does not know its sizes yet."""
    if not isinstance(model, nn.Module):
        raise JobError("model", f"returned {describe(model)}", "return a torch.nn.Module")
    lazy = next((name for name, each in (*model.named_parameters(), *model.named_buffers()) if is_lazy(each)), None)
    if lazy is not None:
        raise JobError(
            "model",
            f"returned a model whose {lazy} is not initialized, as its size shows in the first forward only",
            "run one forward in Job.model before it returns the model, such as model(torch.zeros(1, 8))",
        )
    return model
