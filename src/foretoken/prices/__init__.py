"""The price of passes, in seconds: measured in turn, or estimated from passes that were made. For weighing drafts."""
