"""What claims bits is compared with all others that do, over two epochs."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from torch import nn

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan
from hasten.facts.trials import Proven
from hasten.tuning.proof import bits_proof
from hasten.tuning.proof.bits_proof import differs_from_itself, same_losses
from hasten.tuning.trials.trial import Trial
from tuning.jobs import loss_jobs
from tuning.proof.test_claim_proofs import FLUSH, THREADS, arms, claiming

EXACT = claiming(Preserves.BITS, THREADS, FLUSH)


def by_bits(*choices: Choice, function: str = "job") -> list[Proven]:
    return bits_proof.by_bits(arms(function), choices, lambda doing: None)


def test_two_epochs_are_compared_from_their_first_steps_on():
    plain = replace(loss_jobs.job(), shuffle=False, optimizer=lambda params: torch.optim.SGD(params, lr=0.0))
    still = replace(plain, model=lambda: nn.Linear(6, 3))  # whose loss tells the batch
    with closing(Trial(still, Plan(), "still")) as trial:
        first, second, *again = trial.two_epochs(2)["losses"]
    assert first != second
    assert again == [first, second]


@pytest.mark.proof
@pytest.mark.trap(50)
def test_two_choices_that_change_a_bit_only_together_are_not_both_kept(plant):
    plant("threads + flush_denormals")
    found = by_bits(*EXACT)
    assert {str(each.choice): each.passes for each in found} == {"threads = 1": True, "flush_denormals = true": False}
    beside = "fails together with threads = 1"
    assert found[-1].reason.startswith(f"{beside}: claims to be bit-exact, but the loss of step 2 is ")


@pytest.mark.proof
@pytest.mark.trap(41)
def test_what_changes_a_bit_in_the_second_epoch_alone_does_not_pass(plant):
    plant("threads + second epoch")
    found = {str(each.choice): each for each in by_bits(*EXACT, function="counting_epochs")}
    assert found["flush_denormals = true"].passes
    assert not found["threads = 1"].passes
    assert "claims to be bit-exact, but the loss of step 10 is " in found["threads = 1"].reason


def test_a_loss_that_is_nan_is_equal_to_nothing():
    found = same_losses([1.0, math.nan], [1.0, math.nan])
    assert not found.passes
    assert "in step 2: it is NaN" in found.reason


def test_a_baseline_that_differs_from_itself_is_the_reason():
    assert differs_from_itself([1.0, 2.0], [1.0, 2.0]) is None
    found = differs_from_itself([1.0, 2.0], [1.0, 2.5])
    assert found is not None
    assert not found.is_plans
    assert "the baseline has none: the loss of step 2 is 2.0 in one run of it, and 2.5 in another" in found.reason


@pytest.mark.proof
def test_an_arm_that_fails_is_no_answer(plant):
    plant(failing="threads")
    threads = next(each for each in by_bits(*EXACT) if str(each.choice) == "threads = 1")
    assert not threads.passes
    assert threads.unanswered
    assert threads.reason.endswith("its losses could not be compared: crashed: ZeroDivisionError: as planted")
