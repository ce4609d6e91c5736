"""A window that did not fit into memory is taken again, in smaller microbatches of the same global batch.

Where that would change what is learned, as batch norm in training mode or a declared teacher would, the run ends
instead.
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
    built = run.built
    size = run.loader.microbatch_size or -(-built.batch_size // run.grid.data.size)
    what = " ".join(str(error).partition("\n")[0].split())
    where = f"optimizer step {run.steps + 1}"
    if size == 1:
        fix = "train on smaller samples, or hasten explain activation_checkpointing"
        raise OutOfMemory(f"one sample does not fit: {what}", where=where, fix=fix) from error
    if (why := _why_not(run)) is not None:
        fix = "if that is acceptable, plan microbatch: hasten explain microbatch"
        raise OutOfMemory(f"{what}. The batch is not split automatically: {why}", where=where, fix=fix) from error
    if run.ranks.many:
        technique = "pipeline" if run.grid.stages.many else "microbatch"
        fix = f"make microbatches smaller: hasten explain {technique}"
        raise OutOfMemory(what, where=where, fix=fix) from error
    smaller = (size + 1) // 2
    built.batches.split_into(smaller)
    built.step.window.reference = built.batches.items_per_microbatch
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    return (
        f"{where}: microbatches of {size} did not fit into memory ({what}); from here on microbatches have {smaller} "
        "samples, with the same updates up to rounding where the loss sums single samples and nothing random is drawn"
    )


def _why_not(run: Run) -> str | None:
    """Why smaller microbatches would change what is learned; None where they would not."""
    declared, snapshot = run.built.declared, run.built.rollback.snapshot
    if any(map(normalizes_by_batch, [run.model, *declared.modules])):
        return "batch norm would see other batches"
    if declared.has_more_than_generators:
        changed = f"the declared state of {', '.join(declared.parts)}"
    elif snapshot is not None and snapshot.changed_buffer is not None:
        changed = f"the buffer {snapshot.changed_buffer!a}"
    else:
        return None
    return f"a forward pass changes {changed}, and would change it once for each part"
