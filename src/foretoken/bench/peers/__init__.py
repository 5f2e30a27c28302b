"""Others' engines, each run by a program of its own in a virtual environment that has it."""
