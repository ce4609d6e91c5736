"""A job's model and its real steps, measured: what the rules of models and of runs decide from. No rule is here."""
