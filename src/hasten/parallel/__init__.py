"""How many devices train as one."""
