"""What names and expressions stand for: scopes, imports, assignments, constants. Nothing of torch is known here."""
