"""Draft trees: cutting them to a budget, and merging chains into one."""
