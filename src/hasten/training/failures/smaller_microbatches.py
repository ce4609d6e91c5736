"""A window that did not fit into memory is taken again, in smaller microbatches.

The global batch stays the same, so the same samples give the same update up to rounding, unless the loss compares
samples with each other or the model draws at random. Batch norm in training mode would use other batches, and what else
a forward pass changes, such as a teacher, would change more often: there the run ends instead.
"""

from __future__ import annotations

import torch

from hasten.errors import OutOfMemory
from hasten.techniques.common.batch_split import normalizes_by_batch
from hasten.training.run import Run


def halve_microbatches(run: Run, error: Exception) -> str:
    """From the present window on, which starts again; returns a notice. error: of the window that did not fit.

    Raises OutOfMemory, with the reason, where that cannot help or would change what is learned.
    """
    size = run.loader.microbatch_size or -(-run.built.batch_size // run.grid.data.size)
    what = " ".join(str(error).partition("\n")[0].split())
    where = f"optimizer step {run.steps + 1}"
    if size == 1:
        fix = "train on smaller samples, or hasten explain activation_checkpointing"
        raise OutOfMemory(f"one sample does not fit: {what}", where=where, fix=fix) from error
    if any(map(normalizes_by_batch, [run.model, *run.built.declared.modules])):
        raise OutOfMemory(
            f"{what}. The batch is not split by itself: batch norm would see other batches",
            where=where,
            fix="accept that with a plan: hasten explain microbatch",
        ) from error
    changed = _changed_by_forward(run)
    if changed is not None:
        raise OutOfMemory(
            f"{what}. The batch is not split by itself: a forward pass changes {changed}, and would "
            "change it once for each part",
            where=where,
            fix="accept that with a plan: hasten explain microbatch",
        ) from error
    if run.ranks.many:
        technique = "pipeline" if run.grid.stages.many else "microbatch"
        fix = f"make microbatches smaller: hasten explain {technique}"
        raise OutOfMemory(what, where=where, fix=fix) from error
    smaller = (size + 1) // 2
    run.built.batches.split_into(smaller)
    run.built.step.window.reference = run.built.batches.items_per_microbatch
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    return (
        f"{where}: microbatches of {size} did not fit into memory ({what}); from here on every batch is taken in "
        f"microbatches of {smaller}, with the same updates up to rounding where the loss adds up single samples and "
        "nothing random is drawn"
    )


def _changed_by_forward(run: Run) -> str | None:
    """Declared state, or a buffer that the failed window had changed; None where there is neither."""
    if run.built.declared.has_more_than_generators:
        return f"the declared state of {', '.join(run.built.declared.parts)}"
    snapshot = run.built.rollback.snapshot
    changed = None if snapshot is None else snapshot.changed_buffer
    return None if changed is None else f"the buffer {changed!a}"
