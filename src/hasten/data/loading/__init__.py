"""Batches in their order, and their way to the device. The processes that read them are in `workers`."""
