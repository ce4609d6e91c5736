"""What might help: one technique a file, all of them enrolled here."""

from hasten.techniques import (
    accumulation,
    activation_checkpointing,
    allocator,
    channels_last,
    clipping,
    compile,
    conv_bn_bias,
    cudnn_autotune,
    device_metrics,
    evaluation_batch,
    flush_denormals,
    fused_optimizer,
    learning_rate,
    microbatch,
    precision,
    schedule,
    threads,
)
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

ALL: tuple[Technique, ...] = (
    allocator.TECHNIQUE,
    cudnn_autotune.TECHNIQUE,
    flush_denormals.TECHNIQUE,
    threads.TECHNIQUE,
    conv_bn_bias.TECHNIQUE,
    channels_last.TECHNIQUE,
    activation_checkpointing.TECHNIQUE,
    compile.TECHNIQUE,
    fused_optimizer.TECHNIQUE,
    learning_rate.TECHNIQUE,
    schedule.TECHNIQUE,
    precision.TECHNIQUE,
    microbatch.TECHNIQUE,
    accumulation.TECHNIQUE,
    clipping.TECHNIQUE,
    device_metrics.TECHNIQUE,
    evaluation_batch.TECHNIQUE,
)

__all__ = ["ALL", "No", "Setup", "Stage", "Symptom", "Technique", "Yes"]
