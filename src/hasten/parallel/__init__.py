"""Training on several devices: replicas (DDP), sharding (FSDP), tensor and pipeline parallelism, and their launch."""
