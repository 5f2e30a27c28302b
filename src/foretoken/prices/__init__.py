"""What passes cost, in seconds: measured in turn, or read off passes that were made. Who weighs drafts asks here."""
