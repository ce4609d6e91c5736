"""A part-of-speech tagger for a toy grammar. Train it with `python -m tagger.train`."""
__version__ = "0.3.1"
