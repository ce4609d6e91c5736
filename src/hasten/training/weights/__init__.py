"""Model weights as files, and which weights a run evaluates. No optimizer state."""
