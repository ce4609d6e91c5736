"""Whether an edited script has the gradients and updates of its baseline."""
