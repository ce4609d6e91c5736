"""Changes of a user's source, at the calls that were observed, and the patch that is made of them."""
