"""A run's batches on its device: of the training, and of evaluations. How samples are read is in data."""
