"""Which drafted tokens the target accepts: pure functions."""
