"""Cropping and resizing images into a batch."""
