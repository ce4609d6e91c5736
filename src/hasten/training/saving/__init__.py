"""When a run saves, what it saves, and which checkpoints it retains. The format is in hasten.checkpoint."""
