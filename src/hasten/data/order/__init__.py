"""Which samples make up which batch, and their random numbers. Nothing here reads data."""
