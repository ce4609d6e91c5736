"""A window that did not fit into memory is taken again, in smaller parts.

The global batch stays what it is: the same samples make the same update, up to rounding, as only the sums are grouped
differently; of a loss that compares samples with each other, or a model that draws, it becomes another. Batch norm in
training mode would see other batches, and what else a forward pass moves, such as a teacher or a running mean, would
move more often, so there the run ends as before.
"""

from __future__ import annotations

import torch

from hasten.errors import OutOfMemory
from hasten.techniques.common.batch_split import normalizes_by_batch
from hasten.training.run import Run


def halve_microbatches(run: Run, error: Exception) -> str:
    """From the present window on, which begins anew; what to tell of it. `error` is what did not fit.

    Raises OutOfMemory, with the reason, where that cannot help or would change what is learned.
    """
    size = run.microbatch_size or -(-run.built.batch_size // run.grid.data.size)
    what = " ".join(str(error).partition("\n")[0].split())
    where = f"optimizer step {run.steps + 1}"
    if size == 1:
        fix = "train on smaller samples, or hasten explain activation_checkpointing"
        raise OutOfMemory(f"one sample does not fit: {what}", where=where, fix=fix) from error
    if any(map(normalizes_by_batch, [run.model, *run.built.declared.modules])):
        raise OutOfMemory(
            f"{what}. The batch is not taken in smaller parts by itself: batch norm would see other batches",
            where=where,
            fix="take that upon you with a plan: hasten explain microbatch",
        ) from error
    moves = _moved_by_forward(run)
    if moves is not None:
        raise OutOfMemory(
            f"{what}. The batch is not taken in smaller parts by itself: a forward pass changes {moves}, and would "
            "change it once for each part",
            where=where,
            fix="take that upon you with a plan: hasten explain microbatch",
        ) from error
    if run.ranks.many:
        technique = "microbatch" if run.pipeline is None else "pipeline"
        fix = f"make microbatches smaller: hasten explain {technique}"
        raise OutOfMemory(what, where=where, fix=fix) from error
    smaller = (size + 1) // 2
    run.read_in_microbatches_of(smaller)
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    return (
        f"{where}: microbatches of {size} did not fit into memory ({what}); from here on every batch is taken in "
        f"microbatches of {smaller}, with the same updates up to rounding where the loss adds up single samples and "
        "nothing random is drawn"
    )


def _moved_by_forward(run: Run) -> str | None:
    """What a forward pass changes: declared state, or a buffer that the window changed which is taken again."""
    if run.built.declared.has_more_than_generators:
        return f"the declared state of {', '.join(run.built.declared.parts)}"
    changed = None if run._window_start is None else run._window_start.changed_buffer
    return None if changed is None else f"the buffer {changed!a}"
