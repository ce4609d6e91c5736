from collections import Counter
from pathlib import Path

import pytest
from bench.shards import BASELINE, LEAST, READERS, judged
from bench.shards_arms import LOADERS, Files, bytes_and_labels

from bench import shards_arms
from hasten.data.shards.shard_writer import ImagesInFolders, pack
from hasten.measure.paired_timing import Window, interleaved

pytestmark = [
    # Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # webdataset leaves its files open
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("shards")
    for number in range(150):
        path = folder / "pictures" / f"class-{number % 3}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff" + bytes([number]) * 100)
    pack(ImagesInFolders(folder / "pictures"), folder / "shards", shard_bytes=40_000)
    return folder / "pictures", folder / "shards"


@pytest.mark.parametrize(
    ("name", "workers"),
    [pytest.param(*each, marks=pytest.mark.proof if each[1] else ()) for each in READERS],
)
def test_every_arm_delivers_every_picture_with_its_label_once_an_epoch(name, workers, folders):
    expected = Counter(iter(Files(folders[0])))
    epoch = LOADERS[name](*folders, workers)
    orders = []
    for _ in range(2):
        batches = [bytes_and_labels(batch) for batch in epoch()]
        found = [pair for batch in batches for pair in zip(*batch, strict=True)]
        assert Counter(found) == expected
        assert max(len(labels) for _, labels in batches) == shards_arms.BATCH
        orders.append(found)
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


def windows(seconds: dict[str, float]) -> list[Window]:
    return [Window(arm=name, steps=100, seconds=seconds[name]) for name in interleaved(list(seconds), 12)]


def test_targets_are_judged_against_the_tuned_peer_with_as_many_workers():
    names = [f"{name}, {workers} workers" for name, workers in READERS]
    assert BASELINE in names
    assert {name for ours, other, _ in LEAST for name in (ours, other)} <= set(names)
    seconds = dict.fromkeys(names, 1.0) | {"hasten, 0 workers": 0.5, "hasten, 2 workers": 2.0}
    assert [target.outcome for target in judged(windows(seconds))] == ["met", "missed"]
    assert judged(windows({BASELINE: 1.0, "hasten, 0 workers": 1.0})) == []
