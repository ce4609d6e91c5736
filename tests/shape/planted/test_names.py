"""Private names of others that are imported, planted, and innocent neighbours."""

from __future__ import annotations

from shape.names import check_private_names
from shape.planted import found


def test_a_private_name_of_another_module_is_caught():
    for text in [
        "from torch.utils._pytree import tree_map",
        "import torch._inductor.config as config",
        "from hasten.training.run import _window",
    ]:
        assert found(check_private_names, text) == [1]
    assert found(check_private_names, "from __future__ import annotations; from hasten.training import run") == []


def test_one_adapter_that_names_the_version_may_read_what_a_library_keeps_private():
    text = '"""Private parts of torch, checked on torch 2.13."""\ntorch._foreach_norm(gradients)'
    assert found(check_private_names, text, "src/hasten/training/torch_gradients.py") == []
    assert found(check_private_names, text.replace("2.13", "new"), "src/hasten/training/torch_gradients.py") == [2]
