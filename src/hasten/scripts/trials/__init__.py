"""A trial: a process that runs a copy of the script, edited by a plan, and answers between two steps."""
