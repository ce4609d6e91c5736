"""Checks of the shape of the code. What the code computes is tested elsewhere."""
