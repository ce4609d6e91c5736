"""Data loading without worker processes.

What it finds: A DataLoader that a training loop reads, without `num_workers` or with 0, where each sample takes work: a
`__getitem__` that opens a file or calls a transform, a data set of torchvision or torchaudio, or one that
`load_dataset` made.

Why it costs: The training process loads and transforms every batch itself, and the device waits.

When to ignore it: Where samples are quickly made, or the step uses every core: `hasten doctor` of a job measures it.

Fix: Give `num_workers`; `hasten tune` searches for the number that is best on this machine.

Safety: Nothing is changed by itself: the best number depends on the machine, and the data set must be picklable.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, SourceRule


def check(code: Code) -> Iterator[Found]:
    for loader in code.loaders:
        if loader.in_workers is False and loader.is_trained_on:
            working = next((each for each in loader.sources if each.works_for_each), None)
            if working is not None:
                what = working.owner.name if working.owner is not None else working.name
                yield Found(loader.call, f"the training process itself loads every sample of {what}")


RULE = SourceRule(
    code="H101",
    fix="give num_workers: processes that load the next batches during the step",
    technique="loader_workers",
    check=check,
)
