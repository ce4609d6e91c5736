"""Softmax, and cross-entropy, which is its logarithm at the target."""
