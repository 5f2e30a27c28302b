"""The results of a generation, and its statistics."""
