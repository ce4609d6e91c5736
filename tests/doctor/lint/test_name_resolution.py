"""Names are followed through imports, aliases, attributes and functions; what could mean two things means nothing."""

from __future__ import annotations

import ast

import pytest

from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Scopes


def last_call(text: str) -> tuple[Names, ast.Call]:
    names = Names(Scopes(ast.parse(text)))
    call = names.scopes.nodes[ast.Call][-1]
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
        "from torch.utils.data import *\nfrom helpers import *\nDataLoader(x)",
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


def test_a_relative_import_has_the_name_that_it_is_written_by():
    names, call = last_call("from . import loader\nloader.make()")
    assert names.qualified(call.func) == ".loader.make"


@pytest.mark.parametrize(
    ("text", "made_by"),
    [
        ("import torch\nm = torch.nn.GRU(1, 1)\nm = torch.nn.Linear(1, 1)\nprint(m)", "torch.nn.Linear"),
        ("import torch\nm = torch.nn.GRU(1, 1)\nif x:\n    m = torch.nn.Linear(1, 1)\nprint(m)", None),
        ("import torch\nif x:\n    m = torch.nn.Linear(1, 1)\n    print(m)\nelse:\n    m = 3", "torch.nn.Linear"),
        ("import torch\nm = torch.nn.GRU(1, 1)\nm = m.to(device)\nprint(m)", "torch.nn.GRU"),
        ("import torch\na, b = torch.nn.GRU(1, 1), 2\nprint(a)", "torch.nn.GRU"),
        ("import torch\na, b = torch.nn.GRU(1, 1)\nprint(a)", None),
    ],
    ids=["the last before it", "one of two", "its own branch", "itself, moved", "one of a row", "a part"],
)
def test_of_several_assignments_the_one_that_reaches_a_place_counts(text, made_by):
    names, call = last_call(text)
    assert names.made_by(call.args[0]) == made_by


def test_a_parameter_is_what_the_one_call_of_its_function_gives():
    text = """
import torch
def train(model, epochs=3, *, optimizer=None):
    print(optimizer)
net = torch.nn.Linear(1, 1)
net.train()
train(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
"""
    names = Names(Scopes(ast.parse(text)))
    (shown,) = [each for each in names.scopes.nodes[ast.Call] if getattr(each.func, "id", "") == "print"]
    assert names.made_by(shown.args[0]) == "torch.optim.SGD"


def test_a_parameter_of_a_function_that_is_called_from_two_places_means_nothing():
    text = "import torch\ndef f(m):\n    print(m)\nf(torch.nn.Linear(1, 1))\nf(torch.nn.GRU(1, 1))"
    names = Names(Scopes(ast.parse(text)))
    (shown,) = [each for each in names.scopes.nodes[ast.Call] if getattr(each.func, "id", "") == "print"]
    assert names.made_by(shown.args[0]) is None


def test_what_a_constructor_is_given_is_what_its_object_holds():
    text = """
import torch
class Trainer:
    def __init__(self, model):
        self.model = model
    def fit(self):
        print(self.model)
Trainer(torch.nn.Linear(1, 1)).fit()
"""
    names = Names(Scopes(ast.parse(text)))
    (shown,) = [each for each in names.scopes.nodes[ast.Call] if getattr(each.func, "id", "") == "print"]
    assert names.made_by(shown.args[0]) == "torch.nn.Linear"
