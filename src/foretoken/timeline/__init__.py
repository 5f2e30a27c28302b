"""A picture of a generation's rounds: where the time went, and what it brought."""
