"""DataLoader without worker processes.

What it finds: A training DataLoader without `num_workers`, or with `num_workers=0`, whose samples take work.
Its `__getitem__` opens a file, calls a transform or resamples an image or a sound, or its data set comes from
torchvision, torchaudio or `load_dataset`.

Why it matters: The training process loads and transforms every batch itself, and the device waits for it.

Fix: Set `num_workers`. `hasten tune` finds the fastest number on your machine. What is the same in every epoch,
such as a resize to a fixed size, is cheaper done once, before training.

    loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=4)

When to ignore: Samples are cheap to load, or the step keeps every core busy. `hasten doctor digits.py:job`
measures how long a step waits for data.

Automatic fix: None. The best number depends on the machine, and the data set must be picklable.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, Part, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for loader in code.loaders:
        if loader.in_workers is False and loader.is_trained_on:
            working = next((each for each in loader.sources if each.works_for_each), None)
            if working is not None:
                what = working.owner.name if working.owner is not None else working.name
                message = f"DataLoader without workers: the training process loads every sample of {what}"
                yield Found(loader.call, message)


RULE = SourceRule(
    code="H101",
    severity=Severity.COSTLY,
    fix="pass num_workers: processes that load the next batches during the step",
    technique="loader_workers",
    part=Part.DATA_WAIT,
    check=check,
)
