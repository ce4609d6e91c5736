"""Source files and notebooks checked by rules, suppression of findings, and fixes. How code is read is in reading."""
