"""A page of HTML that shows what a tuner found, or how a run went."""
