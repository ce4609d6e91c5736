"""A divided model computes what the undivided one does: compared on the first batch, or refused.

Neither a table of layers nor a plan knows what the model's own code does with them: it may compute another loss or
gradient without an error. So the loss and all gradients of the first microbatch are computed before and after the
division. Weights get a little noise for that, because a layer that starts at zero hides errors in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hasten.errors import Misconfigured
from hasten.parallel.collectives import gather_over_ranks
from hasten.parallel.sharding import Sharding

# Relative. Sums in another order differ by a hundred times less; reduced-precision products (TF32) by more. A gradient
# is a longer sum, in which terms cancel.
_LOSS_TOLERANCE, _LOSS_TOLERANCE_REDUCED = 1e-4, 1e-3
_GRADIENT_FACTOR = 10.0
_SMALLEST_NORM = 1e-4  # of the largest gradient norm; smaller gradients are rounding
_NOISE = 0.1, 0.01  # standard deviation: of a weight's own, and at least


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a model computes of one microbatch.

    loss: NaN on a rank that computes none. gradients: by parameter, on the host; undivided ones are whole.
    """

    loss: float
    gradients: Mapping[str, Tensor]


def check_parity(
    whole: Outcome, divided: Outcome, sharding: Sharding, device: torch.device, *, technique: str, fix: str
) -> None:
    """Raises Misconfigured, on all ranks, where loss or gradients differ. technique: that divides the model."""
    here = _difference(whole, divided, sharding)
    found = gather_over_ranks([here] if here else [], sharding.grid.all, device)
    if found:
        what = f"the parallel model's result differs from the original model's on the first batch: {found[0]}"
        raise Misconfigured(what, where=technique, fix=fix)


def failed_on_first_batch(what: str, error: Exception, *, technique: str, fix: str) -> Misconfigured:
    """The refusal for an error of the divided model. what: that failed."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return Misconfigured(f"{what} fails on the first batch: {message}", where=technique, fix=fix)


def _difference(whole: Outcome, divided: Outcome, sharding: Sharding) -> str:
    reduced = torch.get_float32_matmul_precision() != "highest"
    close = _LOSS_TOLERANCE_REDUCED if reduced else _LOSS_TOLERANCE
    if abs(whole.loss - divided.loss) > close * max(1.0, abs(whole.loss)):  # False where one is NaN
        return f"the loss is {divided.loss:.6g} instead of {whole.loss:.6g}"
    norms = {name: float(each.norm()) for name, each in whole.gradients.items()}
    smallest = _SMALLEST_NORM * max(norms.values(), default=0.0)
    names = [name for name in dict.fromkeys([*whole.gradients, *divided.gradients]) if sharding.has(name)]
    for name in names:
        if name not in whole.gradients or name not in divided.gradients:
            which = "divided" if name in whole.gradients else "undivided"
            return f"the {which} model has no gradient of {name}"
        error = float((divided.gradients[name] - sharding.share(name, whole.gradients[name])).norm())
        if not error <= _GRADIENT_FACTOR * close * max(norms[name], smallest):
            return f"the gradient of {name} has the norm {norms[name]:.6g}, and an error of {error:.6g}"
    return ""


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The gradients by parameter, copied to the host, and cleared."""
    found = {name: each.grad.to("cpu", copy=True) for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return found


@contextmanager
def noisy_weights(model: nn.Module, share: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Inside, weights have noise, the same on every rank; after it, their own values, to the bit.

    share: (name, the whole weight) -> what this rank holds of it at the end of the block.
    """
    floats = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    own = {name: each.detach().to("cpu", copy=True) for name, each in floats.items()}
    generator = torch.Generator().manual_seed(0)
    relative, least = _NOISE
    with torch.no_grad():
        for name, each in floats.items():
            values = own[name].double()
            spread = values.std(correction=0)
            noise = torch.randn(values.shape, dtype=torch.float64, generator=generator)
            each.copy_((values + (relative * spread).clamp(min=least) * noise).to(each.dtype))
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in own.items():
                parameter, held = model.get_parameter(name), share(name, value)
                if held.shape == parameter.shape:  # else an exception came before the division, and ends the run
                    parameter.copy_(held)
