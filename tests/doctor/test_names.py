"""Names are followed through imports, aliases, attributes and functions; what could mean two things means nothing."""

from __future__ import annotations

import ast

import pytest

from hasten.doctor.names import Names


def last_call(text: str) -> tuple[Names, ast.Call]:
    names = Names(ast.parse(text))
    call = names.nodes[ast.Call][-1]
    assert isinstance(call, ast.Call)
    return names, call


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.utils.data.DataLoader(x)",
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
    names, call = last_call(text)
    assert names.qualified(call.func) == "torch.utils.data.DataLoader"


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils.data import DataLoader\nfrom mine import DataLoader\nDataLoader(x)",
        "from torch.utils.data import DataLoader\nif fast:\n    DataLoader = FastLoader\nDataLoader(x)",
        "def f(DataLoader):\n    return DataLoader(x)",
        "from torch.utils.data import *\nDataLoader(x)",
        "for DataLoader in loaders:\n    DataLoader(x)",
        "from torch.utils.data import DataLoader\ndef f():\n    DataLoader = 3\n    DataLoader(x)",
    ],
)
def test_a_name_that_could_mean_something_else_means_nothing(text):
    names, call = last_call(text)
    assert names.qualified(call.func) != "torch.utils.data.DataLoader"


def test_what_a_name_holds_is_followed_through_attributes_functions_and_methods_that_return_it():
    text = """
import torch
def made():
    return torch.nn.Linear(2, 2)
class Trainer:
    def __init__(self):
        self.model = made().cuda()
    def fit(self):
        print(self.model)
"""
    names, call = last_call(text)
    assert names.made_by(call.args[0]) == "torch.nn.Linear"


def test_a_global_that_a_function_sets_is_that_of_the_module():
    text = "import torch\nnet = None\ndef f():\n    global net\n    net = torch.nn.Linear(1, 1)\nprint(net)"
    names, call = last_call(text)
    assert names.value(call.args[0]) is None


def test_a_class_does_not_lend_its_names_to_its_methods():
    text = "import torch\nclass A:\n    torch = 3\n    def f(self):\n        torch.compile(self)"
    names, call = last_call(text)
    assert names.qualified(call.func) == "torch.compile"


def test_assignments_that_go_round_in_circles_come_to_an_end():
    names, call = last_call("a = b\nb = a\nprint(a)")
    assert names.made_by(call.args[0]) is None
    assert names.qualified(call.args[0]) is None
