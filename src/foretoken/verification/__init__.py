"""Verifiers: the target checks drafts. `local`: in this process."""
