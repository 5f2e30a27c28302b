"""The pace: how many tokens to draft in a round, so that the most tokens a second come out. It never changes them."""
