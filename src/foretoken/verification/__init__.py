"""Verifiers, which own the target and check drafts. `local` is the one in this process."""
