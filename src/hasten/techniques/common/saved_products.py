"""Save the results of products in a recomputed block: they are expensive to compute and small beside the rest.

Source: torch.utils.checkpoint, selective activation checkpointing; Chen et al. 2016, arXiv:1604.06174, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from hasten.kernels.attention import scaled_dot_product_attention  # noqa: F401  defines the operator
from hasten.techniques.common import torch_internals

PRODUCTS = torch_internals.PRODUCTS | {torch.ops.hasten.attention.default}
Context = AbstractContextManager[Any]


def saving_nothing(first: Context, later: Context) -> tuple[Context, Context]:
    return first, later


def saving_products(first: Context, later: Context) -> tuple[Context, Context]:
    """Contexts of a first forward and of the one that recomputes it, which gets the products of the first.

    They differentiate the block once.
    """
    save, restore = create_selective_checkpoint_contexts(_policy)
    return _both(first, save), _both(later, restore)


def products_in_a_compiler() -> tuple[Context, Context]:
    """The same where torch.compile traces the block, which keeps the block's buffers by itself."""
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, operation: Any, *given: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _both(outer: Context, inner: Context) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(outer)
        stack.enter_context(inner)
        yield
