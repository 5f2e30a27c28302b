"""Settings: the choices of a user, checked when they are given."""
