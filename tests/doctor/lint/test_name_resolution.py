"""Names are followed through imports, aliases, attributes and functions; what could mean two things means nothing."""

from __future__ import annotations

import ast

import pytest

from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Scopes


def shown(text: str) -> tuple[Names, ast.Call]:
    """The last call of the text; of print, where it calls that."""
    names = Names(Scopes(ast.parse(text)))
    calls = names.scopes.all(ast.Call)
    return names, next((each for each in calls if getattr(each.func, "id", "") == "print"), calls[-1])


@pytest.mark.parametrize(
    "text",
    [
        "import torch.utils.data\ntorch.utils.data.DataLoader(x)",
        "import torch.utils.data as data\ndata.DataLoader(x)",
        "from torch.utils import data\ndata.DataLoader(x)",
        "from torch.utils.data import DataLoader as Loader\nLoader(x)",
        "from torch.utils.data.dataloader import DataLoader\nDataLoader(x)",
        "import torch\nLoader = torch.utils.data.DataLoader\nLoader(x)",
        "import torch\ndef f():\n    from torch.utils.data import DataLoader\n    return DataLoader(x)",
        "try:\n    from torch.utils.data import DataLoader\nexcept ImportError:\n    raise\nDataLoader(x)",
    ],
)
def test_a_name_is_followed_to_what_was_imported(text):
    names, call = shown(text)
    assert names.qualified(call.func) == "torch.utils.data.DataLoader"


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils.data import DataLoader\nif fast:\n    DataLoader = FastLoader\nDataLoader(x)",
        "def f(DataLoader):\n    return DataLoader(x)",
        "from torch.utils.data import *\nfrom helpers import *\nDataLoader(x)",
        "for DataLoader in loaders:\n    DataLoader(x)",
        "from torch.utils.data import DataLoader\ndef f():\n    DataLoader = 3\n    DataLoader(x)",
    ],
)
def test_a_name_that_could_mean_something_else_means_nothing(text):
    names, call = shown(text)
    assert names.qualified(call.func) != "torch.utils.data.DataLoader"


@pytest.mark.parametrize(
    ("text", "made_by"),
    [
        ("m = GRU(1, 1)\nm = Linear(1, 1)\nprint(m)", "torch.nn.Linear"),
        ("m = GRU(1, 1)\nif x:\n    m = Linear(1, 1)\nprint(m)", None),
        ("if x:\n    m = Linear(1, 1)\n    print(m)\nelse:\n    m = 3", "torch.nn.Linear"),
        ("m = GRU(1, 1)\nm = m.to(device)\nprint(m)", "torch.nn.GRU"),
        ("a, b = GRU(1, 1), 2\nprint(a)", "torch.nn.GRU"),
        ("a, b = GRU(1, 1)\nprint(a)", None),
        ("a = b\nb = a\nprint(a)", None),
        ("m = None\ndef f():\n    global m\n    m = GRU(1, 1)\nprint(m)", None),
        ("def f(m, epochs=3, *, other=None):\n    print(other)\nf(3, other=GRU(1, 1))", "torch.nn.GRU"),
        ("def f(m):\n    print(m)\nf(GRU(1, 1))\nf(Linear(1, 1))", None),
        ("class A:\n    def __init__(self, m):\n        self.m = m\n    def f(self):\n        print(self.m)\n"
         "A(GRU(1, 1)).f()", "torch.nn.GRU"),
        ("def made():\n    return GRU(2, 2)\nclass A:\n    def __init__(self):\n        self.m = made().cuda()\n"
         "    def f(self):\n        print(self.m)", "torch.nn.GRU"),
    ],
    ids=["the last before it", "one of two", "its own branch", "itself, moved", "one of a row", "a part", "a circle",
         "a global", "a parameter", "two calls", "a constructor", "a function and an attribute"],
)  # fmt: skip
def test_what_a_name_holds_is_followed_as_far_as_it_is_certain(text, made_by):
    names, call = shown(f"from torch.nn import GRU, Linear\n{text}")
    assert names.made_by(call.args[0]) == made_by


def test_a_class_does_not_lend_its_names_to_its_methods():
    names, call = shown("import torch\nclass A:\n    torch = 3\n    def f(self):\n        torch.compile(self)")
    assert names.qualified(call.func) == "torch.compile"


def test_a_relative_import_has_the_name_that_it_is_written_by():
    names, call = shown("from . import loader\nloader.make()")
    assert names.qualified(call.func) == ".loader.make"
