"""What form a tensor has and where it lies; and taking the content of another in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def form_of(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def have_same_form(one: Tensor, other: Tensor) -> bool:
    return form_of(one) == form_of(other)


def place_in_memory(tensor: Tensor) -> tuple[Any, ...] | None:
    """None for what has no dense memory of its own: sparse and nested ones, those of the device meta, of a class that
    wraps other tensors but for parts that ranks hold, and those whose storage was made smaller. Else where it lies, and
    as what."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    if isinstance(own := getattr(tensor, "_local_tensor", None), Tensor):  # a part; by its storage, as it may be empty
        return own.untyped_storage()._cdata, own.storage_offset(), tensor.dtype, tensor.shape, tensor.stride()
    begin = tensor.data_ptr()
    if tensor.numel() and not (begin and has_its_memory(tensor)):
        return None
    return begin, tensor.dtype, tensor.shape, tensor.stride()


def has_its_memory(tensor: Tensor) -> bool:
    """False where the storage that a dense tensor lies in was made smaller since."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return not tensor.numel() or tensor.untyped_storage().nbytes() >= end


def is_sparse(tensor: Tensor) -> bool:
    """In any of the layouts whose content is dense tensors of places and of values."""
    return tensor.layout is torch.sparse_coo or is_compressed(tensor)


def is_compressed(tensor: Tensor) -> bool:
    return tensor.layout in {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def dense_bytes(tensor: Tensor | None) -> int:
    """Those of a sparse one as if it were dense."""
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def can_be_copied(tensor: Tensor) -> bool:
    return place_in_memory(tensor) is not None or is_sparse(tensor)


def can_lie_elsewhere(tensor: Tensor) -> bool:
    """Whether all of it does when its .data is set: torch lets a compressed one keep its values, and refuses others."""
    return can_be_copied(tensor) and not is_compressed(tensor)


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
