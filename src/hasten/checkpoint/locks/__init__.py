"""One process at a time: a lock file, and the lock of a run's folder."""
