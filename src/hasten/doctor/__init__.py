"""What slows a job: found in its source, which is never executed."""
