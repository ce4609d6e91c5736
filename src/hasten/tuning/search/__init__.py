"""Which choices are tried, in which order, and what joins the plan. Processes are in trials, proofs in proof."""
