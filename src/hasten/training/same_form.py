"""Whether one tensor can take the content of another in as it is; and taking it in."""

from __future__ import annotations

import torch
from torch import Tensor


def form_of(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def have_same_form(one: Tensor, other: Tensor) -> bool:
    return form_of(one) == form_of(other)


def is_expanded(tensor: Tensor) -> bool:
    """Whether several of its elements are one: nothing can be written into it."""
    if tensor.layout is not torch.strided:
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def put_into(tensor: Tensor, content: Tensor) -> None:
    """Write the content where the tensor lies, and so into what shares its memory; where it has another form, it lies
    elsewhere from now on, and is the same object."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if have_same_form(tensor, content) and not is_expanded(tensor):
            tensor.copy_(content)
        else:
            tensor.data = content.to(tensor.device, copy=True)
