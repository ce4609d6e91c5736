"""What a running script trains, and where in its code: calls, loops, modules. Nothing here is timed."""
