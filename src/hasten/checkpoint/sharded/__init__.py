"""Checkpoints whose tensors several ranks hold in parts. Whole tensors are in safetensors_files."""
