"""The crash sweep: one conversation, killed at every step of its messages and gone on with."""
