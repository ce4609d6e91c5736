"""Weights in the form of the job's own model: what a plan has changed about the model is taken back for them.

A state_dict() can hold more than tensors: what a module gives by get_extra_state().
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hasten.techniques.setup import Setup


def in_jobs_form(weights: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """Where they lie: they move on with the model that they are of."""
    found = {key: each.detach() if isinstance(each, Tensor) else each for key, each in weights.items()}
    for to_job in reversed(setup.to_job_weights):
        found = to_job(found)
    return found


def kept_on_host(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Copied one by one: tied weights must not share memory in a file, nor follow the model as it trains on."""
    return {key: _on_host(each) if isinstance(each, Tensor) else copy.deepcopy(each) for key, each in weights.items()}


def _on_host(tensor: Tensor) -> Tensor:
    copied = tensor.to("cpu", copy=True)
    return copied.contiguous() if tensor.layout is torch.strided else copied
