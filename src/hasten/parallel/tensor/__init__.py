"""Several ranks hold each layer together: columns, rows, heads, vocabulary."""
