"""What techniques read of torch that has no public name. Checked with torch 2.13; torch 2.9 and newer have it too."""

from __future__ import annotations

from torch import Tensor, nn, ops
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

BatchNorm = _BatchNorm  # the base class of every batch norm

PRODUCTS = frozenset(  # operators whose results are expensive to compute
    {
        ops.aten.mm.default,
        ops.aten.addmm.default,
        ops.aten.bmm.default,
        ops.aten.baddbmm.default,
        ops.aten.linear.default,
        ops.aten.convolution.default,
        ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        ops.aten._scaled_dot_product_flash_attention.default,
        ops.aten._scaled_dot_product_efficient_attention.default,
        ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)


def version_of(tensor: Tensor) -> int:
    """A counter that every in-place write increases."""
    return tensor._version


def has_forward_pre_hooks(module: nn.Module) -> bool:
    return bool(module._forward_pre_hooks)


def has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether hooks run before or after the optimizer's steps. An optimizer that is no subclass of torch's has none."""
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return any(getattr(optimizer, each, None) for each in hooks)
