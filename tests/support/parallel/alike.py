"""Whether a run of several ranks left what a run of one process did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor


def check_alike(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """By all that both tell, but for how much of the weights a rank held."""
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
    assert found["results"] == pytest.approx(wanted["results"], rel=1e-9)
    assert found.get("norms", []) == pytest.approx(wanted.get("norms", []), rel=1e-6)
    assert found.get("unreached") == wanted.get("unreached")
    check_weights(found["weights"], wanted["weights"])


def check_weights(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        # Of a gradient that is rounding alone, as of a bias before two norms, Adam makes steps of about 1e-12.
        torch.testing.assert_close(found[name], weight, rtol=1e-9, atol=1e-10)
