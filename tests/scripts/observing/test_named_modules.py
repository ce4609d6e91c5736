"""Which of several equal modules a running function trains."""

from __future__ import annotations

import inspect
from copy import deepcopy

from torch import nn
from torch.optim import SGD

from hasten.facts.scripts.seen import SeenModel
from hasten.scripts.observing.named_modules import NamedModules, module_in, trained_module


def seen_as(*names: str) -> SeenModel:
    return SeenModel(
        kind="Linear", parameters=20, trained=20, device="cpu", names=names, images=(), inputs=(), called=()
    )


def test_of_a_student_and_its_equal_teacher_and_average_the_one_in_the_optimizer_is_found():
    teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
    average = deepcopy(student)
    frame = inspect.currentframe()
    assert frame is not None
    for module in (teacher, student, average):
        assert module_in([frame], seen_as(), SGD(module.parameters(), lr=0.1)) is module


def test_of_two_modules_of_one_optimizer_the_one_with_the_observed_name_is_found():
    left, right = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = SGD([*left.parameters(), *right.parameters()], lr=0.1)
    frame = inspect.currentframe()
    assert frame is not None
    for name, module in (("right", right), ("left", left)):
        assert module_in([frame], seen_as(name), optimizer) is module


def test_a_module_is_found_of_which_the_optimizer_holds_no_parameter():
    model, head = nn.Linear(4, 4), nn.Linear(4, 2)
    frame = inspect.currentframe()
    assert frame is not None
    assert module_in([frame], seen_as("model"), SGD(head.parameters(), lr=0.1)) is model


class OwnOptimizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.functions = nn.Linear(4, 4), list[NamedModules]()

    def configure_optimizers(self) -> None:
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_filename == __file__:
            self.functions.append(NamedModules.of(frame))
            frame = frame.f_back


def test_a_model_that_makes_its_optimizer_has_the_name_that_its_caller_gives_it():
    net = OwnOptimizer()
    net.configure_optimizers()
    module, names, (call,) = trained_module(net.functions, net)
    assert (module, names) == (net, ("net",))
    assert call.function == "test_a_model_that_makes_its_optimizer_has_the_name_that_its_caller_gives_it"
    _, names, (call,) = trained_module(net.functions[:1], net)
    assert (names, call.function) == (("self",), "OwnOptimizer.configure_optimizers")
