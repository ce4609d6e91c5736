"""Where torch.compile can be used, and which modes a plan can write."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.machine import Machine
from hasten.techniques.compile import MODES, TECHNIQUE
from hasten.techniques.contract import No, Yes
from hasten.techniques.setup import CompileOptions, Setup
from support import laptop, setup_of


def setup_on(device: str, machine: Machine | None = None) -> Setup:
    setup = setup_of(nn.Linear(6, 3), None, machine or laptop())
    setup.device = torch.device(device)
    return setup


def choice(value: Value, **options: Value) -> Choice:
    return Choice(technique="compile", value=value, preserves=Preserves.ROUNDING, options=options)


def programs(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    """Only these are on the path."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in found else None)


def triton(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    spec = importlib.util.find_spec("torch") if installed else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_of_torchscript_is_refused():
    setup = setup_of(torch.jit.script(nn.Linear(6, 3)), None, laptop())
    answer = TECHNIQUE.applies(setup)
    assert answer == No("the model is compiled by TorchScript, which torch.compile cannot compile again")


def test_a_processor_without_the_compiler_that_torch_uses_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.platform", "linux")
    programs(monkeypatch, "clang++")
    answer = TECHNIQUE.applies(setup_on("cpu"))
    assert answer == No("compiling for the CPU needs a C++ compiler, and g++ is not on the PATH")
    monkeypatch.setenv("CXX", "clang++")
    assert TECHNIQUE.applies(setup_on("cpu")) == Yes()


@pytest.mark.parametrize(
    ("installed", "capability", "reason"),
    [
        (False, (9, 0), "Triton, which is not installed"),
        (True, (6, 1), "needs compute capability 7.0; this GPU has 6.1"),
        (True, None, "this GPU has an unknown one"),
        (True, (7, 0), None),
    ],
)
def test_a_card_is_refused_for_what_triton_lacks(
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    capability: tuple[int, int] | None,
    reason: str | None,
):
    programs(monkeypatch, "gcc")
    triton(monkeypatch, installed=installed)
    machine = laptop(accelerator="test card", accelerators=1, compute_capability=capability)
    answer = TECHNIQUE.applies(setup_on("cuda", machine))
    assert answer == Yes() if reason is None else isinstance(answer, No) and reason in answer.reason


def test_only_a_card_is_proposed_cuda_graphs_and_autotuning():
    assert [each.value for each in TECHNIQUE.candidates(setup_on("cpu"))] == ["default"]
    assert [each.value for each in TECHNIQUE.candidates(setup_on("cuda"))] == list(MODES)


def test_cuda_graphs_on_a_processor_are_refused_with_the_reason():
    with pytest.raises(PlanError, match="CUDA graphs, and this job runs on cpu"):
        TECHNIQUE.apply(setup_on("cpu"), choice("reduce-overhead"))


@pytest.mark.parametrize("wrong", [choice("fastest"), choice(True), choice("default", fullgraph=True)], ids=str)
def test_a_value_or_option_without_meaning_is_refused(wrong: Choice):
    with pytest.raises(PlanError, match="compile"):
        TECHNIQUE.apply(setup_on("cpu"), wrong)
    with pytest.raises(PlanError, match="dynamic"):
        TECHNIQUE.apply(setup_on("cpu"), choice("default", dynamic="yes"))


def test_applying_it_records_mode_and_dynamic_shapes_and_does_not_change_the_model():
    setup = setup_on("cpu")
    TECHNIQUE.apply(setup, choice("max-autotune", dynamic=True))
    assert setup.compile == CompileOptions(mode="max-autotune", dynamic=True)
    TECHNIQUE.apply(setup, choice("default"))
    assert setup.compile == CompileOptions(mode="default", dynamic=None)
    assert setup.model._compiled_call_impl is None
