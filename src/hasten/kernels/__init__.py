"""Operators of hasten's own: each one file, beside the plain form that it must agree with."""
