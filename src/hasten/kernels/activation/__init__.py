"""GELU, alone and with a bias and dropout, and the random numbers of that dropout."""
