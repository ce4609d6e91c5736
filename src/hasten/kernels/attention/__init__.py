"""Scaled dot-product attention in bfloat16 on processors."""
