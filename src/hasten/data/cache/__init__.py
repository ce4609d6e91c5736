"""Samples that are the same every time, decoded once and kept on disk. Columns in memory are in `sources`."""
