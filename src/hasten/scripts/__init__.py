"""Runs any training script, unmodified: sees what it trains, tries techniques on copies of it, writes the patch.

Here: how a script is started, observed, timed and edited. Not here: the search itself, which is that of a job (tuning),
and what is printed (report, cli).
"""
