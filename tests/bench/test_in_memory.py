from __future__ import annotations

import pytest
import torch
from bench.in_memory import judged
from bench.in_memory_arms import BATCH, LOADERS, ON_DEVICE, SAMPLES, columns

from hasten.measure.paired_timing import Window, interleaved

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

NAMES = [pytest.param(name, marks=pytest.mark.gpu if name in ON_DEVICE else ()) for name in LOADERS]


def pairs(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[bytes, int]]:
    """Every sample with its label, in the order in which they came."""
    return [
        (value.cpu().numpy().tobytes(), int(label))
        for values, labels in batches
        for value, label in zip(values, labels, strict=True)
    ]


@pytest.mark.parametrize(
    "data", [pytest.param(each, marks=pytest.mark.proof if each != "rows" else ()) for each in SAMPLES]
)
@pytest.mark.parametrize("name", NAMES)
def test_every_arm_delivers_every_sample_with_its_label_once_an_epoch_in_a_new_order(name, data):
    given = columns(data, 3 * BATCH - 100)
    epoch = LOADERS[name](given)
    first, second = [list(epoch()) for _ in range(2)]
    assert [len(labels) for _, labels in first] == [BATCH, BATCH, BATCH - 100]
    assert all(values.dtype is given[0].dtype and values.shape[1:] == given[0].shape[1:] for values, _ in first)
    assert pairs(first) != pairs(second)
    assert sorted(pairs(first)) == sorted(pairs(second)) == sorted(pairs([given]))


def outcomes(data: str, microseconds: dict[str, float]) -> dict[str, str]:
    windows = [
        Window(arm=name, steps=1000, seconds=microseconds[name] * 1e-3) for name in interleaved(list(microseconds), 12)
    ]
    return {target.name: target.outcome for target in judged(data, windows)}


def test_rows_are_judged_against_the_dataloader_and_all_data_against_a_gather_by_hand():
    measured = {"dataloader": 260.0, "by_hand": 10.0, "hasten": 11.0}
    assert outcomes("rows", measured) == {
        "hasten: batches for each one of dataloader": "missed",
        "hasten: batches for each one of by_hand": "met",
    }
    assert list(outcomes("pictures", measured)) == ["hasten: batches for each one of by_hand"]
