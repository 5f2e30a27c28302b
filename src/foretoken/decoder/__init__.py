"""The forward pass: configuration, weights, rotary positions, caches, and the decoder that uses them."""
