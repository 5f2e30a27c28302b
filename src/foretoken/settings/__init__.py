"""Settings: what a user may choose, checked when it is given."""
