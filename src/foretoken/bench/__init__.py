"""Measurements: prompts that nothing was trained on, and the results for them."""
