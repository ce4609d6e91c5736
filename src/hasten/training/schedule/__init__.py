"""Learning-rate schedules: built, checked, stepped, saved and traced."""
