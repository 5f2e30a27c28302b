"""Text and tokens: the tokenizer, text while tokens are still coming, and where it stops."""
