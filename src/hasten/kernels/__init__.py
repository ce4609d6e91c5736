"""Fused operators: one file for each operator and language, beside the plain form that it must agree with."""
