"""WebDataset tar shards: written, indexed, read and checked. Images out of shards are in `images`."""
