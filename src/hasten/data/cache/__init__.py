"""Samples that are the same every time, decoded once and stored on disk. Columns in memory are in `sources`."""
