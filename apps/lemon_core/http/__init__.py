"""What a server of Lemon answers over HTTP."""
