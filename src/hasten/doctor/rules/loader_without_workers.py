"""Data loading without worker processes.

What it finds: A DataLoader that a training loop reads, without `num_workers` or with 0, where each sample is visibly
work: a `__getitem__` that opens a file or calls a transform, a data set of torchvision or torchaudio, or one that
`load_dataset` made.

Why it costs: With `num_workers=0` the training process loads and transforms every batch itself. While it does that it
gives the device nothing new to compute, and while it waits for the device it loads nothing.

When to ignore it: Where samples are small and quickly made, or where the step uses every core itself. `hasten doctor`
with a job measures both.

Fix: Give `num_workers`; the right number depends on the machine, and `hasten tune` looks for it.

Safety: Nothing is changed by itself: the right number of workers depends on the machine, and a data set has to be one
that other processes can be given.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for loader in code.loaders:
        if loader.in_workers is False and loader.is_trained_on:
            working = next((each for each in loader.sources if each.works_for_each), None)
            if working is not None:
                what = working.owner.name if working.owner is not None else working.name
                yield Found(loader.call, f"the training process itself loads every sample of {what}")


RULE = SourceRule(
    code="H101",
    severity=Severity.SLOW,
    fix="give num_workers: processes that load the next batches during the step",
    technique="loader_workers",
    check=check,
)
