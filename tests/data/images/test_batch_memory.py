"""Memory is given out again only when nobody holds any part of it."""

import numpy as np
import pytest
import torch

from hasten.data.images.batch_memory import BatchMemory

HOLDS = {
    "tensor": lambda tensor: tensor,
    "row": lambda tensor: tensor[0],
    "transposed": lambda tensor: tensor.permute(1, 0),
    "detached": lambda tensor: tensor.detach(),
    "as bytes": lambda tensor: tensor.view(torch.uint8),
    "numpy": lambda tensor: tensor.numpy(),
    "row of numpy": lambda tensor: tensor.numpy()[:1],
    "storage": lambda tensor: tensor.untyped_storage(),
    "memory view": lambda tensor: memoryview(tensor.numpy()),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
}


@pytest.mark.trap(42)
@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_what_is_held_in_any_form_is_not_given_out_again(hold):
    memory = BatchMemory()
    tensor = memory.empty((2, 3), torch.float32)
    place, held = tensor.data_ptr(), hold(tensor)
    del tensor
    taken = [memory.empty((2, 3), torch.float32) for _ in range(3)]
    assert place not in [each.data_ptr() for each in taken]
    del held
    assert memory.empty((2, 3), torch.float32).data_ptr() == place
