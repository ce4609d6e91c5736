"""Normalization over the last dimension: LayerNorm, alone and after a residual sum."""
