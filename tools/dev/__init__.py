"""Programs for those who work on Lemon."""
