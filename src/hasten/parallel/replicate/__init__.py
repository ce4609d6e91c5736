"""Every rank holds the whole model (DistributedDataParallel)."""
