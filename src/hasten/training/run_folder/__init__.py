"""The folder of a run: what is recorded in it, and what is compared on resume. No checkpoints."""
