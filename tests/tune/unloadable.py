"""A library that ends whoever imports it."""

raise SystemExit(4)
