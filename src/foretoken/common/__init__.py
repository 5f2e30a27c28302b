"""What everybody uses: files, what the system leaves, progress, pictures, where a model and a number come from."""
