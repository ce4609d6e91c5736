"""When a run saves, what it saves, and which checkpoints stay. The format is in hasten.checkpoint."""
