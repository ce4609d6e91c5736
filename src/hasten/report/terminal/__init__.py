"""Output on a terminal: progress, tables, charts of characters. Elsewhere the same facts are plain lines."""
