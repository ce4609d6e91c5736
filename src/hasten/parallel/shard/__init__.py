"""Every rank holds a part of each parameter (fully_shard)."""
