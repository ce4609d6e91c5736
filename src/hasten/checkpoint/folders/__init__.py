"""Folders of one user or one process: caches, temporary files, shared memory. No run folders."""
