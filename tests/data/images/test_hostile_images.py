"""Files that are damaged, or meant to harm, give pictures or one error that names them: no crash, no hang, no flood.

They are read by another process, whose memory is limited. What it can still take is stated here; a file that would need
more must be refused like any other. Each is read by the reader that a loader has, and where it is refused, again by
one that replaces bad samples.

    PYTHONPATH=tests python tests/data/images/test_hostile_images.py FOLDER

reads a folder and prints a line for each file.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import hasten
from hasten.data.images.image_decoder import Encoded
from hasten.data.loading.bad_samples import Repaired
from hasten.data.loading.batch_readers import Request, reader_of
from hasten.data.loading.data_errors import Failed
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed
from support.data.image_cases import ENDINGS, HARMS, hostile, jpeg, whole_files

MEMORY = 1 << 30  # bytes beyond what the process takes with all decoders loaded
SIZE, SEED = 32, 20


def write_hostile(root: Path, count: int) -> list[str]:
    """Hostile files in the class `bad`, as many sound ones in `good`; what is wrong with each."""
    (root / "bad").mkdir()
    (root / "good").mkdir()
    (root / "good" / "0.jpg").write_bytes(jpeg(50, 60))
    whole, harms = whole_files(), []
    for number in range(count):
        harm, data = hostile(number, SEED, whole)
        harms.append(harm)
        ending = ENDINGS[number * 7 % len(ENDINGS)]  # mostly another format's
        (root / "bad" / f"{number:05}.{ending}").write_bytes(data)
        if number:
            os.link(root / "good" / "0.jpg", root / "good" / f"{number}.jpg")
    return harms


def read(root: Path) -> None:
    torch.set_num_threads(1)
    data = hasten.ImageFolder(root, hasten.RandomResizedCrop(SIZE))
    source = source_of(data, field="train")
    stops, replaces = reader_of(source, seed=1), reader_of(source, seed=1, replace_bad=True)
    load_decoders()
    gc.disable()  # memory must not depend on when the collector comes by
    limit = address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for index in range(len(data) // 2):  # those of the class `bad`, which is the first
        tell(os.path.basename(data.steady.path(index)) + "\t")
        tell(outcome(stops, replaces, index, data.steady.path(index)) + "\n")


def tell(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()  # what is told last is the file that harmed


def outcome(stops, replaces, index: int, path: str) -> str:
    request = Request(0, np.array([index]))
    found = stops.__getitems__(request)
    if type(found) is not Failed:
        return "decoded" if is_batch(found) else f"WRONG {found}"
    kind, what = type(found.error), found.error.what
    del found  # with the traceback, and what was decoded until then
    if kind is not DataFailed or f": {path}: " not in what or "\n" in what:
        return f"WRONG {kind.__name__}: {what}"
    repaired = replaces.__getitems__(request)
    if type(repaired) is not Repaired or not is_batch(repaired.batch) or repaired.replaced[0].sample != index:
        return f"WRONG {repaired}"
    return what.partition(f"{path}: ")[2]


def is_batch(batch) -> bool:
    pictures, labels = batch
    return pictures.shape == (1, 3, SIZE, SIZE) and bool(torch.isfinite(pictures).all()) and labels.shape == (1,)


def load_decoders() -> None:
    """Decoders are libraries, which are loaded when they are first used."""
    for data in whole_files():
        Encoded(data, "whole").at(1)


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def read_apart(root: Path) -> list[tuple[str, str]]:
    """(file, outcome) of each in another process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, str(root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        lines = []
        try:
            assert process.stdout is not None
            lines.extend(process.stdout)
        finally:
            process.kill()
            process.wait()
            if process.returncode:
                tell(f"ended with {process.returncode} at {lines[-1:]}\n")
    assert process.returncode == 0, lines[-1:]
    return [(name, told) for name, told in (line.rstrip("\n").split("\t", 1) for line in lines)]


def check(root: Path, count: int) -> None:
    harms = write_hostile(root, count)
    found = read_apart(root)
    assert len(found) == count
    wrong = [(harm, *line) for harm, line in zip(harms, found, strict=True) if line[1].startswith("WRONG")]
    assert wrong == []
    kinds = Counter(
        (harm, "decoded" if told == "decoded" else "refused") for harm, (_, told) in zip(harms, found, strict=True)
    )
    for (harm, what), times in sorted(kinds.items()):
        tell(f"{harm:24} {what:8} {times:6}\n")
    refusals = Counter("memory" if "memory" in told else "refused" for _, told in found if told != "decoded")
    tell(f"{dict(refusals)}\n")
    # Damage is found, and what is only odd is read: neither is all that happens.
    assert kinds["truncated", "refused"] > 0.8 * harms.count("truncated")
    assert any(what == "decoded" for _, what in kinds)
    assert {harm for harm, _ in kinds} == {make.__name__.strip("_") for make in HARMS}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [34, pytest.param(300, marks=pytest.mark.proof)])
def test_hostile_files_harm_nobody(tmp_path, count):
    check(tmp_path, count)


if __name__ == "__main__":
    read(Path(sys.argv[1]))
