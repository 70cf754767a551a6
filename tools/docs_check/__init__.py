"""The check that what the documents show in a terminal is what happens there."""
