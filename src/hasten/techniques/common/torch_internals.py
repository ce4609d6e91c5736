"""What techniques read of torch that has no public name. Checked with torch 2.13; torch 2.9 and newer have it too."""

from __future__ import annotations

from torch import Tensor, ops
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import _get_current_function_mode_stack

function_modes = _get_current_function_mode_stack  # that are entered
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
