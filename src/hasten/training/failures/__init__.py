"""Exceptions of a run as errors that say what to do."""
