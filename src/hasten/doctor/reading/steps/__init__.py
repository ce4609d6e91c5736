"""What a file does in its training and evaluation loops, in which order and under which conditions."""
