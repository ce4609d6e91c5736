"""What is true, as frozen records. Nothing here loads torch at import time."""
