"""Which precisions are proposed and refused on which device, and what the Setup holds afterwards."""

import pytest
import torch
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques.contract import No
from hasten.techniques.precision import TECHNIQUE
from support import laptop, setup_of


def card(*capability, **changes):
    return laptop(accelerator="test card", accelerators=1, compute_capability=tuple(capability), **changes)


def setup_on(device, machine):
    setup = setup_of(nn.Linear(6, 3), (torch.randn(8, 6), torch.zeros(8, dtype=torch.long)), machine)
    setup.device = torch.device(device)
    return setup


def chosen(value, **options):
    return Choice(technique="precision", value=value, preserves=Preserves.STATISTICS, options=options)


def offered(device, machine):
    return [choice.value for choice in TECHNIQUE.candidates(setup_on(device, machine))]


@pytest.mark.trap(14)
def test_fp16_on_a_processor_is_never_proposed_and_always_refused():
    machine = laptop(processor_features=frozenset({"avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16"}))
    assert offered("cpu", machine) == ["bf16"]
    with pytest.raises(PlanError, match="fp16 on a CPU can take minutes a step") as caught:
        TECHNIQUE.apply(setup_on("cpu", machine), chosen("fp16"))
    assert caught.value.fix == 'write "bf16"'


@pytest.mark.trap(14)
@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((6, 1), []),
        ((7, 0), ["fp16"]),
        ((7, 5), ["fp16"]),
        ((8, 0), ["bf16", "fp16", "tf32"]),
        ((10, 0), ["bf16", "fp16", "tf32"]),
    ],
)
def test_a_card_is_offered_the_precisions_that_it_has_units_for(capability, expected):
    assert offered("cuda", card(*capability)) == expected


@pytest.mark.trap(14)
@pytest.mark.parametrize("value", ["bf16", "tf32"])
def test_a_precision_that_the_card_lacks_is_refused_with_both_capabilities(value):
    with pytest.raises(PlanError) as caught:
        TECHNIQUE.apply(setup_on("cuda", card(7, 5)), chosen(value))
    assert caught.value.what == f"{value} needs compute capability 8.0; this GPU has 7.5"
    assert caught.value.fix == 'write "fp16"'


@pytest.mark.parametrize("feature", ["avx512_bf16", "amx_bf16", "bf16", "svebf16"])
def test_a_processor_with_bf16_instructions_is_offered_only_bf16(feature):
    assert offered("cpu", laptop(processor_features=frozenset({feature, "other"}))) == ["bf16"]


def test_a_model_in_float64_stays_there():
    setup = setup_on("cpu", laptop(processor_features=frozenset({"avx512_bf16"})))
    assert not isinstance(TECHNIQUE.applies(setup), No)
    setup.model.double()
    assert TECHNIQUE.applies(setup) == No("the model is in float64, which autocast does not lower")


def test_a_processor_without_bf16_instructions_is_refused_with_the_reasons():
    machine = laptop(processor_features=frozenset({"avx2"}))
    verdict = TECHNIQUE.applies(setup_on("cpu", machine))
    assert isinstance(verdict, No)
    for reason in ("no bf16 instructions", "tf32 needs CUDA", "fp16 on a CPU"):
        assert reason in verdict.reason


def test_a_plan_may_use_emulated_bf16_and_a_notice_says_it_is_slow():
    setup = setup_on("cpu", laptop(processor_features=frozenset({"avx2"})))
    TECHNIQUE.apply(setup, chosen("bf16"))
    assert setup.step.autocast is torch.bfloat16
    assert len(setup.notices) == 1
    assert "slow here" in setup.notices[0]


def test_a_job_on_the_processor_of_a_machine_with_a_card_is_judged_by_the_processor():
    assert offered("cpu", card(9, 0, processor_features=frozenset({"avx2"}))) == []


@pytest.mark.parametrize(
    ("value", "autocast", "scaled", "float32_matmul", "cudnn_tf32"),
    [
        ("fp32", None, False, None, None),
        ("tf32", None, False, "high", True),
        ("bf16", torch.bfloat16, False, None, None),
        ("fp16", torch.float16, True, None, None),
    ],
)
def test_each_value_sets_its_own_options_and_no_other(value, autocast, scaled, float32_matmul, cudnn_tf32):
    setup = setup_on("cuda", card(8, 0))
    TECHNIQUE.apply(setup, chosen(value))
    assert (setup.step.autocast, setup.step.scale_gradients) == (autocast, scaled)
    assert (setup.process.float32_matmul, setup.process.cudnn_tf32) == (float32_matmul, cudnn_tf32)
    assert setup.notices == []


@pytest.mark.parametrize("choice", [chosen("bf17"), chosen(16), chosen(["bf16"]), chosen("bf16", level="O2")], ids=str)
def test_another_value_is_refused_with_the_known_ones(choice):
    with pytest.raises(PlanError, match='write "bf16", "fp16", "tf32" or "fp32"'):
        TECHNIQUE.apply(setup_on("cuda", card(8, 0)), choice)
