"""Techniques that might speed up a job or save memory: one a file, and ALL, which lists them."""

from hasten.techniques import (
    accumulation,
    activation_checkpointing,
    allocator,
    batch_size,
    cache,
    channels_last,
    clipping,
    communication,
    compile,
    conv_bn_bias,
    cudnn_autotune,
    device_metrics,
    device_prefetch,
    device_transform,
    evaluation_batch,
    flush_denormals,
    fused_operators,
    fused_optimizer,
    in_memory,
    learning_rate,
    loader_workers,
    microbatch,
    persistent_workers,
    pin_memory,
    pipeline,
    precision,
    prefetch,
    schedule,
    shard,
    stop_at,
    tensor,
    threads,
)
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

# In the order in which they are applied, a stage a line or two.
_MODULES = (
    *(allocator, cudnn_autotune, flush_denormals, threads),
    *(batch_size, cache, in_memory, loader_workers, prefetch, persistent_workers, pin_memory),
    *(device_transform, device_prefetch),
    *(conv_bn_bias, channels_last, fused_operators, activation_checkpointing, compile),
    *(tensor, pipeline, shard, communication),
    *(fused_optimizer, learning_rate, schedule),
    *(precision, microbatch, accumulation, clipping, device_metrics),
    *(evaluation_batch, stop_at),
)
ALL: tuple[Technique, ...] = tuple(module.TECHNIQUE for module in _MODULES)

__all__ = ["ALL", "No", "Setup", "Technique", "Yes"]
