"""`hasten tune`: the command, one search from its start to its result, and its file of trials."""
