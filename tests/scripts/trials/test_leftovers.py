"""A search leaves the user's folder, home and temporary files as they were, however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

END_SECONDS = 60.0
SCRIPT = dedent("""
    import os
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    os.makedirs("out/old", exist_ok=True)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2000, 20), torch.randint(2, (2000,)))
    loader = DataLoader(data, batch_size=20, shuffle=True, num_workers=1)
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(100):
        for features, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
        torch.save(model.state_dict(), "out/best.pt")
        with open("out/log.txt", "a") as log:
            log.write(f"{epoch} {float(loss)}\\n")
        os.rename("out/best.pt", f"out/old/{epoch}.pt")
""")
OWN = {"plan.toml", "plan.trials.jsonl", "plan.patch"}


@pytest.fixture
def room() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    made = Path(tempfile.mkdtemp(prefix="room-"))
    by_torch = f"tmp/torchinductor_{getuser()}"  # made whenever torch._dynamo is imported
    for name in ("own/out/old", "own/data", "home/.cache/torch", by_torch):
        (made / name).mkdir(parents=True)
    (made / "own" / "train.py").write_text(SCRIPT)
    (made / "own" / "out" / "log.txt").write_text("of an earlier run\n")
    (made / "own" / "out" / "best.pt").write_bytes(b"weights of an earlier run")
    (made / "own" / "data" / "large.bin").write_bytes(bytes(3 << 20))
    (made / "home" / ".cache" / "torch" / "weights.pth").write_bytes(b"1")
    yield made
    shutil.rmtree(made)


def state(room: Path) -> Mapping[str, str]:
    """Of all files and folders but those that a search is to write."""
    return {
        str(path.relative_to(room)): sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(room.rglob("*"))
        if path.name not in OWN
    }


@contextmanager
def tuning(room: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "HOME": str(room / "home"), "TMPDIR": str(room / "tmp")}
    command = [sys.executable, "-m", "hasten", "tune", "--busy", *words]
    with subprocess.Popen(
        command, cwd=room / "own", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process


def until_trials(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All of its processes, once it tries the first choices."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("the baseline again"):
            break
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.proof
def test_a_search_leaves_its_plan_and_nothing_else(room):
    before = state(room)
    with tuning(room, "--seconds", "20", "--json", "train.py") as process:
        answer, shown = process.communicate()
    assert process.returncode == 0, shown
    assert state(room) == before
    assert json.loads(answer)["patch"] == ("plan.patch" if (room / "own" / "plan.patch").exists() else None)
    assert {path.name for path in (room / "own").iterdir()} & OWN >= {"plan.toml", "plan.trials.jsonl"}


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_search_that_is_interrupted_leaves_nothing(room, number):
    before = state(room)
    with tuning(room, "--seconds", "300", "train.py") as process:
        started = until_trials(process)
        process.send_signal(number)
        _, shown = process.communicate()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], shown
    _, alive = psutil.wait_procs(started, timeout=END_SECONDS)
    assert not alive
    assert state(room) == before


@pytest.mark.proof
def test_what_a_killed_search_leaves_ends_and_is_removed_by_the_next_one(room):
    before = state(room)
    with tuning(room, "--seconds", "300", "train.py") as process:
        started = until_trials(process)
        process.kill()
    _, alive = psutil.wait_procs(started, timeout=END_SECONDS)
    assert not alive
    left = {name for name in state(room) if name not in before and not name.startswith("tmp/hasten-")}
    assert left <= {"own/.plan.toml.lock"}
    with tuning(room, "--seconds", "5", "train.py") as process:
        process.communicate()
    assert state(room) == before
