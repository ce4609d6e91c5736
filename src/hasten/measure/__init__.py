"""How we know: clocks, paired comparisons, profiles. Knows no technique."""
