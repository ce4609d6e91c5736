"""Loader processes and threads: started, supervised, ended. What they read is in `loading`."""
