"""Accumulation: microbatches of any kind and number give the large batch, to rounding."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hasten.facts.job import Loss
from hasten.training.step import Step
from hasten.training.step_parts.losses import mean_and_count
from hasten.training.step_parts.supervised import supervised
from support.training.steps import (
    IGNORED,
    Recording,
    classifier,
    cut,
    gradients_of,
    mean_loss_function,
    reference_gradients,
    relative_error,
    rows,
    token_loss,
)


@pytest.mark.trap(3)
@settings(max_examples=12)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_microbatches_of_any_sizes_give_the_large_batch_for_a_mean_loss(sizes):
    batch = rows(sum(sizes))
    found, logged = gradients_of(mean_loss_function, cut(batch, sizes))
    wanted = reference_gradients(lambda model: mean_loss_function(model, batch))
    assert relative_error(found, wanted) < 1e-12
    assert logged == pytest.approx(mean_loss_function(classifier(), batch).item(), rel=1e-12)


@pytest.mark.trap(1)
@pytest.mark.trap(6)
@settings(max_examples=12)
@given(data=st.data(), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_microbatches_with_unequal_token_counts_give_the_large_batch(data, sizes):
    features, target = rows(sum(sizes))
    ignored = data.draw(st.lists(st.booleans(), min_size=len(target), max_size=len(target)))
    target = target.masked_fill(torch.tensor(ignored), IGNORED)
    found, logged = gradients_of(token_loss, cut((features, target), sizes))
    if all(ignored):
        assert all(gradient.eq(0).all() for gradient in found)
        return
    wanted = reference_gradients(lambda model: functional.cross_entropy(model(features), target))
    assert relative_error(found, wanted) < 1e-12
    assert logged == pytest.approx(functional.cross_entropy(classifier()(features), target).item(), rel=1e-12)


@pytest.mark.trap(4)
def test_a_microbatch_whose_every_target_is_ignored_weighs_nothing():
    full, empty = rows(4), rows(3, seed=2)
    empty[1].fill_(IGNORED)
    wanted = reference_gradients(lambda model: mean_loss_function(model, full))
    for pieces in ([full, empty], [empty, full], [empty, empty, full]):
        found, _ = gradients_of(token_loss, pieces)
        assert relative_error(found, wanted) < 1e-12


@pytest.mark.trap(4)
def test_a_window_without_any_item_moves_nothing_to_nan():
    empty = rows(3)
    empty[1].fill_(IGNORED)
    assert mean_and_count(token_loss(classifier(), empty), 1)[0].item() == 0.0
    for pieces in ([empty], [empty, empty]):
        found, _ = gradients_of(supervised(functional.cross_entropy), pieces)
        assert all(gradient.eq(0).all() for gradient in found)


@pytest.mark.trap(3)
def test_nothing_of_one_window_is_left_for_the_next():
    model = classifier()
    optimizer = Recording(model.parameters())
    step = Step(model, token_loss, [optimizer])
    batches = [rows(6), rows(5, seed=2), rows(2, seed=3), rows(4, seed=4)]
    for batch, sizes in zip(batches, ([2, 2, 2], [2, 3], [2], [3, 1]), strict=True):
        for position, piece in enumerate(cut(batch, sizes)):
            step.accumulate(piece, len(piece[1]), last=position == len(sizes) - 1)
        step.update()
    with pytest.raises(RuntimeError, match="before any accumulate"):
        step.update()
    for seen, batch in zip(optimizer.seen, batches, strict=True):
        wanted = reference_gradients(lambda model, batch=batch: mean_loss_function(model, batch))
        assert relative_error(seen, wanted) < 1e-12


@pytest.mark.trap(5)
def test_an_auxiliary_term_is_weighted_by_samples_and_not_by_items():
    features, target = rows(9)
    target[:4] = IGNORED

    def balance(model: nn.Module, rows_: Tensor) -> Tensor:
        return 0.3 * model(rows_).square().sum(dim=1).mean()

    def loss(model, batch):
        return Loss(*(lambda base: (base.total, base.count))(token_loss(model, batch)), balance(model, batch[0]))

    wanted = reference_gradients(lambda model: mean_loss_function(model, (features, target)) + balance(model, features))
    whole = (mean_loss_function(classifier(), (features, target)) + balance(classifier(), features)).item()
    for sizes in ([9], [4, 5], [2, 2, 4, 1]):
        found, logged = gradients_of(loss, cut((features, target), sizes))
        assert relative_error(found, wanted) < 1e-6
        assert logged == pytest.approx(whole, rel=1e-6)


@pytest.mark.trap(7)
def test_sums_of_16_bit_gradients_do_not_drift():
    pieces = [(features.bfloat16(), target) for features, target in cut(rows(256), [1] * 256)]
    model = classifier(torch.bfloat16)
    reference = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = Step(model, mean_loss_function, [optimizer], reference=1)
    step._masters.hand_to(optimizer)
    before = [master.clone() for master in step._masters.tensors()]
    for position, piece in enumerate(pieces):
        step.accumulate(piece, 1, last=position == 255)
    step.update()
    found = [old - new for old, new in zip(before, step._masters.tensors(), strict=True)]
    whole = torch.cat([features.double() for features, _ in pieces]), torch.cat([target for _, target in pieces])
    mean_loss_function(reference, whole).backward()
    wanted = [parameter.grad.float() for parameter in reference.parameters()]
    # Each gradient is rounded to 8 bits, 0.4 %. A bf16 sum drifts past 5 %; a float32 sum averages the rounding out.
    assert relative_error(found, wanted) < 0.01
