"""What saving behind a training costs it, at the interval that hasten chooses by itself.

    python -m bench.checkpoint_stall            # half an hour; nothing else may run; writes a record
    python -m bench.checkpoint_stall --quick    # half a minute; shows that it works, and judges nothing

A transformer whose training state is about 256 MiB is trained with a run folder. The training stands still while its
state is copied; and while a thread hashes and writes the copy, steps take longer, as both work on the same processors.
Both are measured in one run: the first is told with every checkpoint, the second is how much longer the steps beside a
write took than the median of all others.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench.options import parser_of
from bench.record import PACKAGES, Target, environment, write_folder
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.facts.events import Event, Saved, Trained
from hasten.facts.machine import read_machine
from hasten.measure.paired_timing import LEAST_PAIRS, estimate

WORDS, WIDTH, LENGTH, BATCH = 16384, 512, 64, 8
MOST_SHARE = 0.01  # of the time; fixed before the first run


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0),
            4,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.blocks(self.words(text), mask=mask, is_causal=True))


def job() -> hasten.Job:
    text = torch.randint(0, WORDS, (4096, LENGTH + 1), generator=torch.Generator().manual_seed(1))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        (text,) = batch
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    optimizer = lambda params: torch.optim.AdamW(params, lr=1e-4)  # noqa: E731
    return hasten.Job(
        model=Writer, loss=loss, optimizer=optimizer, train=(text,), batch_size=BATCH, epochs=1000, log_every=1
    )


@dataclass(frozen=True, slots=True)
class Save:
    """stall_seconds: for which the training stood still. beside_seconds: that the steps until it was written took
    longer. interval_seconds: until the next save."""

    step: int
    bytes: int
    stall_seconds: float
    write_seconds: float
    beside_seconds: float
    interval_seconds: float

    @property
    def share(self) -> float:
        return self.stall_seconds / self.interval_seconds

    @property
    def whole_share(self) -> float:
        return (self.stall_seconds + self.beside_seconds) / self.interval_seconds


class _Watching:
    """Collects steps and saves, and ends the run when there are enough of these."""

    def __init__(self, saves: int) -> None:
        self.steps: list[Trained] = []
        self.saved: list[Saved] = []
        self._enough = saves

    def log(self, event: Event) -> None:
        if isinstance(event, Trained):
            self.steps.append(event)
        elif isinstance(event, Saved) and len(self.saved) < self._enough:  # to end the run saves once more
            self.saved.append(event)
            stood = f"stood still {event.stall_seconds:.3f} s"
            print(f"step {event.step}: {stood}, written in {event.seconds:.2f} s", flush=True)
            if len(self.saved) == self._enough:
                raise _Enough

    def close(self) -> None:
        """Nothing to close."""


class _Enough(Exception):
    """There are enough checkpoints."""


def main() -> None:
    options = parser_of("checkpoint_stall", __doc__).parse_args()
    watching = _Watching(4 if options.quick else LEAST_PAIRS + 3)
    saving = hasten.Saving(every_seconds=0.0)
    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        hasten.train(job(), run_dir=Path(folder) / "run", saving=saving, receivers=[watching])
    # The first save pays for memory that the later ones use again, and its interval is a guess from it alone.
    saves = costs(watching.steps, watching.saved)[1:]
    asked = "share", "whole_share", "stall_seconds"
    found = {name: _spread([getattr(each, name) for each in saves]) for name in asked}
    low, value, high = found["share"]
    name = "share of the time for which the training stands still"
    target = Target(name=name, bound=MOST_SHARE, at_most=True, low=low, value=value, high=high)
    print(f"{target.name}: {value:.2%} ({low:.2%} to {high:.2%}), {target.outcome}")
    low, value, high = found["whole_share"]
    print(f"with the steps that a write slows: {value:.2%} ({low:.2%} to {high:.2%})")
    if options.quick:
        print("--quick judges nothing: no record was written", flush=True)
        return
    _write(saves, watching.steps, target, found, options.records)


def costs(steps: Sequence[Trained], saved: Sequence[Saved]) -> list[Save]:
    """Of every save but the last, whose interval is not known. Steps are logged each by itself."""
    ends = {each.step: each.seconds for each in steps}
    lasted = {each.step: each.seconds - ends[each.step - 1] for each in steps if each.step - 1 in ends}
    beside = {each.step: _written_beside(each, ends) for each in saved}
    busy = {step for found in beside.values() for step in found}
    alone = median(seconds for step, seconds in lasted.items() if step not in busy)
    found: list[Save] = []
    for save, following in itertools.pairwise(saved):
        slower = sum(lasted[step] - alone for step in beside[save.step] if step in lasted) - save.stall_seconds
        interval = ends[following.step] - ends[save.step]
        found.append(Save(save.step, save.bytes, save.stall_seconds, save.seconds, slower, interval))
    return found


def _written_beside(save: Saved, ends: dict[int, float]) -> list[int]:
    """The steps that ended while a checkpoint was written, and the one in which it was finished."""
    begun, found = ends[save.step], list[int]()
    for step in range(save.step + 1, max(ends) + 1):
        found.append(step)
        if ends[step] - begun > save.seconds:
            break
    return found


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Low, median and high: a bootstrap interval of 95 % over the saves; of too few of them, the least and the most."""
    if len(values) < LEAST_PAIRS:
        return min(values), median(values), max(values)
    return estimate(lambda resamples: np.median(resamples, axis=-1), np.array(values))


def _write(
    saves: Sequence[Save],
    steps: Sequence[Trained],
    target: Target,
    found: dict[str, tuple[float, float, float]],
    records: Path,
) -> None:
    machine = read_machine()
    size = saves[-1].bytes
    result = {
        "bytes": size,
        "target": asdict(target) | {"outcome": target.outcome},
        **{name: dict(zip(("low", "median", "high"), each, strict=True)) for name, each in found.items()},
    }
    lines = [*map(asdict, saves), *({"step": each.step, "seconds": each.seconds} for each in steps)]
    low, value, high = found["whole_share"]
    least, stall, most = found["stall_seconds"]
    page = f"""# Saving behind a training, at the interval that hasten chooses

A training state of {size / (1 << 20):.0f} MiB, {len(saves)} checkpoints, on {machine.summary}.

| | median | 95 % interval |
|---|---|---|
| stands still, a save | {stall * 1000:.0f} ms | {least * 1000:.0f} to {most * 1000:.0f} ms |
| stands still, of the time | {target.value:.2%} | {target.low:.2%} to {target.high:.2%} |
| with the steps that a write slows, of the time | {value:.2%} | {low:.2%} to {high:.2%} |

Target, fixed before the first run: the training stands still for at most {MOST_SHARE:.0%} of the time:
**{target.outcome}**.

A save's time is divided by that until the next one. samples.jsonl has every save and every step; environment.json the
machine, versions and commit. Again: `python -m bench.checkpoint_stall`
"""
    home = write_folder("checkpoint-stall", records, machine, environment(machine, PACKAGES), result, lines, page)
    print(f"written: {home}", flush=True)


if __name__ == "__main__":
    main()
