"""`lemon chat`: a conversation in the terminal. Start with `conversation.py`."""
