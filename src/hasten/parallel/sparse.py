"""Sparse gradients, which torch makes of the rows of an embedding alone, go with whole models."""

from __future__ import annotations

from torch import nn

from hasten.errors import JobError


def refuse_sparse(model: nn.Module, technique: str, holders: str) -> None:
    """Raises JobError for an embedding that has them. holders: who cannot sum them, by this technique."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            what = f"has sparse gradients in {name}, which {holders} cannot sum"
            raise JobError("model", what, f"build it with sparse=False, or leave `{technique}` out of the plan")
