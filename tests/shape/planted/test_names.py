"""Private names of others that are read, planted in every spelling, and innocent neighbours."""

from __future__ import annotations

from shape.names import check_private_names
from shape.planted import found

CLASS = "class Run:\n    def __init__(self): self._model = 1\n"


def test_a_private_name_of_another_object_is_caught():
    for text in [
        "run._model",
        "self.run._model",
        "get(run)[0]._model()",
        "torch._foreach_norm(gradients)",
        "from torch.utils._pytree import tree_map",
        "from hasten.training.run import _window",
        "getattr(run, '_model')",
        "sys._getframe()",
    ]:
        assert found(check_private_names, text) == [1]


def test_a_name_of_its_own_is_let_through():
    for text in [
        "self._model; cls._made; self._model.eval()",
        CLASS + "def same(one, other): return one._model == other._model",
        "_CACHE = {}\nmodule._CACHE",
        "def _helper(): ...\nmodule._helper()",
        "class Field:\n    _value: int\ndef value(field): return field._value",
        "run.__class__; run.__dict__",
        "import os, sys; os._exit(1); sys._current_frames()",
        "version._replace(minor=1)._asdict()",
        "from __future__ import annotations",
        "getattr(run, name); getattr(run, 'model')",
        "'run._model'  # run._model",
    ]:
        assert found(check_private_names, text) == []


def test_one_adapter_that_names_the_version_may_read_what_a_library_keeps_private():
    text = '"""Private parts of torch, checked on torch 2.13."""\ntorch._foreach_norm(gradients)'
    assert found(check_private_names, text, "src/hasten/training/torch_gradients.py") == []
    assert found(check_private_names, text, "src/hasten/training/gradients.py") == [2]
    assert found(check_private_names, text.replace("2.13", "new"), "src/hasten/training/torch_gradients.py") == [2]
