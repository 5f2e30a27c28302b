"""The loop of proposing, checking and observing; a call's own loop over prompts; and what comes out of it."""
