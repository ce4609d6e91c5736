"""How a source file is read: what its names mean, what it computes, where, and in which order. Nothing is executed."""
