"""What a generation gives back, and its statistics."""
