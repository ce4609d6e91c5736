"""Whether a plan preserves what its choices claim: by bits, by gradients, by the losses of pairs of runs."""
