"""What an assistant keeps beside its conversations: goals, boards, heartbeats and its home."""
