"""What a recomputed block keeps all the same: results of products, which are dear to compute and few beside the others.

Source: torch.utils.checkpoint, selective activation checkpointing; Chen et al. 2016, arXiv:1604.06174, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from hasten.kernels.attention import scaled_dot_product_attention  # noqa: F401  defines the operator

_ATEN = torch.ops.aten
PRODUCTS = frozenset(
    {
        _ATEN.mm.default,
        _ATEN.addmm.default,
        _ATEN.bmm.default,
        _ATEN.baddbmm.default,
        _ATEN.linear.default,
        _ATEN.convolution.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.hasten.attention.default,
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
    }
)
Context = AbstractContextManager[Any]


def keeping_nothing(first: Context, later: Context) -> tuple[Context, Context]:
    return first, later


def keeping_products(first: Context, later: Context) -> tuple[Context, Context]:
    """Contexts of a first forward pass and of the one that recomputes it, of which the second is given products as the
    first has computed them. They differentiate it once."""
    keep, give = create_selective_checkpoint_contexts(_policy)
    return _both(first, keep), _both(later, give)


def products_in_a_compiler() -> tuple[Context, Context]:
    """The same where torch.compile traces the block, which keeps a block's buffers by itself."""
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, operation: Any, *given: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _both(outer: Context, inner: Context) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(outer)
        stack.enter_context(inner)
        yield
