"""Whether a run of the job that is killed and resumed is equal to an undisturbed one."""
