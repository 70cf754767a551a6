"""The SMS inbox: what Twilio delivers, kept for a day, and the codes in it for runs that wait."""
