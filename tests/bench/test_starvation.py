from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from bench.pictures import write_pictures
from bench.starvation import BASELINE, OURS, judged
from bench.starvation_arms import BATCH, SIZE, from_dataloader, from_hasten, from_memory

from bench import starvation_arms

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

BUILT = {
    BASELINE: lambda notes, folder: from_memory(notes, folder),
    OURS: lambda notes, folder: from_hasten(notes, folder, threads=1),
    "DataLoader, 0 workers": lambda notes, folder: from_dataloader(notes, folder, workers=0),
}


class Small(torch.nn.Module):
    """In place of the network, and of its minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        assert pictures.shape == (BATCH, 3, SIZE, SIZE)
        assert pictures.is_contiguous(memory_format=torch.channels_last)
        return self.layer(pictures.mean((2, 3)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(write_pictures(tmp_path_factory.mktemp("bench") / "pictures", 2 * BATCH))


@pytest.mark.parametrize("name", BUILT)
def test_every_arm_trains_on_whole_batches_and_notes_how_long_it_waited(name, folder, tmp_path, monkeypatch):
    models = []
    monkeypatch.setattr(starvation_arms, "resnet_18", lambda: models.append(Small()) or models[-1])
    notes = tmp_path / "notes"
    window = BUILT[name](str(notes), folder)
    before = models[-1].layer.weight.detach().clone()
    window(1)
    window(2)
    assert not torch.equal(models[-1].layer.weight.detach().cpu(), before)
    lines = [json.loads(line) for line in Path(notes).read_text().splitlines()]
    assert [line["arm"] for line in lines] == [name, name]
    assert all(0 < line["waited_seconds"] < line["seconds"] for line in lines)


def test_a_training_that_waits_too_long_misses():
    shares = {OURS: [0.05 + 0.001 * number for number in range(1, 13)], BASELINE: [0.0] * 12}
    assert [target.outcome for target in judged(shares, 0.02)] == ["missed"]
    assert [target.outcome for target in judged(shares, 0.10)] == ["met"]
