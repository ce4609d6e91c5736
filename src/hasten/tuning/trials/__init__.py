"""Processes that hold the job under one plan, and what is measured in them. What is tried is decided in search."""
