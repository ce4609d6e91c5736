"""The trainings of bench.whole_work as jobs: hasten train bench/whole_jobs.py:rows"""

from __future__ import annotations

import torch
from bench.whole_work import BATCH, WORKS, Work
from torch import nn

import hasten


def _job(work: Work) -> hasten.Job:
    return hasten.Job(
        model=work.model,
        loss=hasten.supervised(nn.functional.cross_entropy),
        optimizer=lambda params: torch.optim.Adam(params, lr=work.learning_rate),
        train=work.train,
        valid=work.valid,
        batch_size=BATCH,
        epochs=work.epochs,
    )


def rows() -> hasten.Job:
    return _job(WORKS["rows"]())


def digits() -> hasten.Job:
    return _job(WORKS["digits"]())


def photos() -> hasten.Job:
    return _job(WORKS["photos"]())
