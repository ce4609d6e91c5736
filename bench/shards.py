"""Reading pictures, undecoded and shuffled: hasten's shards, webdataset's own reader of the same shards, plain files.

    pip install -e ".[bench]" webdataset
    python -m bench.shards            # half an hour; nothing else may run meanwhile; writes a record
    python -m bench.shards --quick    # a minute; shows that it works, and judges nothing

2,000 pictures of 500 × 375 in batches of 64, in one process and with two workers. All files are in memory by the first
window (the page cache), so what is compared is the readers' own work; a disk that must seek would separate shuffled
files from shards, and shards of any reader from each other, by far more.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.arms import Arm, Protocol, run_arms
from bench.judging import conclude, controlled, speed_targets
from bench.options import parser_of
from bench.pictures import write_pictures
from bench.record import Record, Target
from bench.shards_arms import BATCH

from hasten.data.shards.shard_writer import ImagesInFolders, Packed, pack
from hasten.measure.paired_timing import Window, compare

ARMS = Path(__file__).resolve().with_name("shards_arms.py")
BASELINE = "webdataset_default, 0 workers"
READERS = [
    *((name, 0) for name in ("webdataset_default", "webdataset_tuned", "files", "hasten")),
    *((name, 2) for name in ("webdataset_default", "webdataset_tuned", "files", "hasten", "hasten_threads")),
]
SHARD_BYTES = 10_000_000

# Fixed before the first run: batches of the first in the time that the second needs for one, at least. Plain files are
# there to be seen beside them: where all of them are in memory, a shard cannot win against an open and a read.
LEAST = (
    ("hasten, 0 workers", "webdataset_tuned, 0 workers", 1.0),
    ("hasten, 2 workers", "webdataset_tuned, 2 workers", 1.0),
)


def main() -> None:
    options = parser_of("shards", __doc__).parse_args()
    count = 256 if options.quick else 2000
    epoch = -(-count // BATCH)
    if options.quick:
        protocol = Protocol(rounds=12, steps=50, warmup_steps=epoch)
    else:
        protocol = Protocol(rounds=16, steps=8 * epoch, warmup_steps=epoch)
    with tempfile.TemporaryDirectory() as folder:
        pictures = write_pictures(Path(folder) / "pictures", count)
        begin = time.perf_counter()
        shards = Path(folder) / "shards"
        packed = pack(ImagesInFolders(pictures), shards, shard_bytes=SHARD_BYTES)
        seconds = time.perf_counter() - begin
        print(f"packed: {packed.bytes:,} bytes into {packed.shards} shards in {seconds:.2f} s", flush=True)
        places = {"pictures": str(pictures), "shards": str(shards)}
        _measure(places, packed, seconds, protocol, None if options.quick else options.records)


def _measure(
    places: Mapping[str, str], packed: Packed, seconds: float, protocol: Protocol, records: Path | None
) -> None:
    arms = [
        Arm(
            name=f"{name}, {workers} workers",
            entry=f"{ARMS}:arm",
            arguments={"loader": name, "workers": workers, **places},
        )
        for name, workers in READERS
    ]
    itself = controlled(next(arm for arm in arms if arm.name == LEAST[0][0]), protocol)
    measured = run_arms(arms, protocol)
    comparisons = [
        compare(measured.windows, baseline=BASELINE, challenger=arm.name) for arm in arms if arm.name != BASELINE
    ]
    targets = judged(measured.windows)
    for found in comparisons:
        print(f"{found.challenger:30} {found.speedup}")
    record = Record(
        what="shards",
        claim=f"{packed.samples:,} pictures of 500 × 375, read shuffled and not decoded: shards and plain files",
        command="python -m bench.shards",
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=targets,
        packages=("webdataset",),
        findings={"packing": {"seconds": seconds, "bytes": packed.bytes, "shards": packed.shards}},
        remarks=[
            f"packing took {seconds:.2f} s, once, for {packed.bytes:,} bytes in {packed.shards} shards; all files were "
            "in memory, so no disk was measured",
            "hasten compares a checksum of every sample that it reads, and its epoch can be entered at any batch; the "
            "other arms do neither",
        ],
    )
    conclude(record, records)


def judged(windows: Sequence[Window]) -> list[Target]:
    """The targets, of arms that were measured."""
    return speed_targets(windows, LEAST, "batches")


if __name__ == "__main__":
    main()
