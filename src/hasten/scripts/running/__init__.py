"""How a script is started: by Python itself, in a process of its own, with its own or with edited sources."""
