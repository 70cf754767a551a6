"""The webhook: a program outside sends a message and may hear what became of it."""
