"""Draft trees: pure functions."""
