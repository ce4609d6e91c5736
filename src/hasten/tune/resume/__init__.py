"""Whether a run of the job that is killed and resumed is the run that nobody disturbed."""
