"""Metrics over ranks, early stopping and targets; the evaluation itself is training/evaluate.py."""
