"""`hasten doctor`: the command, and what it measures of a running job or script."""
