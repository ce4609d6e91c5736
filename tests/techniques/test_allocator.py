"""Which allocator settings exist where, what they write, and how fragmentation is counted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques import allocator
from hasten.techniques.allocator import CUDA_VARIABLE, TECHNIQUE, fragmentation, values
from hasten.techniques.contract import No, Yes
from support import laptop, setup_of

ON_LINUX = ["expandable_segments", "max_split_size", "roundup_power2"]


def setup_on(device):
    setup = setup_of(nn.Linear(6, 3), (torch.randn(8, 6), torch.zeros(8, dtype=torch.long)), laptop())
    setup.device = torch.device(device)
    return setup


def chosen(value, **options):
    return Choice(technique="allocator", value=value, preserves=Preserves.BITS, options=options)


def on_a_system(monkeypatch, system, c_library):
    monkeypatch.setattr(allocator.sys, "platform", system)
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: (c_library, ""))


@pytest.mark.parametrize(
    ("device", "system", "c_library", "expected"),
    [
        ("cuda", "linux", "glibc", ON_LINUX),
        ("cuda", "win32", "", ["max_split_size", "roundup_power2"]),
        ("cpu", "linux", "glibc", ["keep_freed_memory"]),
        ("cpu", "linux", "", []),
        ("cpu", "darwin", "", []),
        ("mps", "darwin", "", []),
    ],
)
def test_each_system_has_its_own_values(device, system, c_library, expected):
    assert values(device, system, c_library) == expected


def test_every_value_for_cuda_becomes_a_setting_that_torch_can_read(monkeypatch):
    on_a_system(monkeypatch, "linux", "glibc")
    for value in ON_LINUX:
        setup = setup_on("cuda")
        TECHNIQUE.apply(setup, chosen(value))
        (setting,) = setup.process.environment.items()
        assert setting[0] == CUDA_VARIABLE
        tell, ask = (getattr(torch._C, f"_accelerator_{verb}AllocatorSettings", None) for verb in ("set", "get"))
        if tell is not None:
            tell(setting[1])
            assert ask is None or ask() == setting[1]  # torch 2.11 can be told but not asked
            tell("")


def test_a_processor_with_the_gnu_c_library_keeps_freed_memory(monkeypatch):
    on_a_system(monkeypatch, "linux", "glibc")
    setup = setup_on("cpu")
    assert TECHNIQUE.applies(setup) == Yes()
    TECHNIQUE.apply(setup, *TECHNIQUE.candidates(setup))
    assert setup.process.keep_freed_memory is True
    assert setup.process.environment == {}


def test_a_system_without_settings_is_refused_with_its_name(monkeypatch):
    on_a_system(monkeypatch, "darwin", "")
    setup = setup_on("cpu")
    verdict = TECHNIQUE.applies(setup)
    assert isinstance(verdict, No)
    assert "this job runs on cpu under darwin" in verdict.reason
    with pytest.raises(PlanError, match="remove the choice on this machine"):
        TECHNIQUE.apply(setup, chosen("keep_freed_memory"))


@pytest.mark.parametrize(
    "choice", [chosen("expandable_segments"), chosen(True), chosen("keep_freed_memory", megabytes=1)]
)
def test_a_setting_of_another_device_is_refused_with_those_of_this_one(monkeypatch, choice):
    on_a_system(monkeypatch, "linux", "glibc")
    with pytest.raises(PlanError, match="write one of: keep_freed_memory"):
        TECHNIQUE.apply(setup_on("cpu"), choice)


def stats(reserved, allocated, inactive_split):
    return {
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.current": allocated,
        "inactive_split_bytes.all.current": inactive_split,
    }


def test_free_pieces_of_used_segments_are_fragments_and_free_segments_are_not():
    assert fragmentation(stats(reserved=100, allocated=60, inactive_split=25)) == 0.25
    assert fragmentation(stats(reserved=100, allocated=60, inactive_split=0)) == 0.0
    assert fragmentation({}) == 0.0, "CUDA was never used"


@given(reserved=st.integers(1, 1 << 40), share=st.fractions(0, 1))
def test_fragmentation_is_a_share(reserved, share):
    pieces = int(reserved * share)
    assert fragmentation(stats(reserved, 0, pieces)) == pytest.approx(pieces / reserved)
