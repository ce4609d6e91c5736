"""The engine: the step, the loop, evaluation and what surrounds them."""
