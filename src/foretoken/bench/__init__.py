"""Measurements: prompts that nothing was trained on, and what came out for them."""
