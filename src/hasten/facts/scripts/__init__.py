"""Facts of a training script: what it trains, as it was observed, and the places that a plan changes."""
