"""Where weights lie: mapped from their files, or copied into huge pages; and which of the two, here."""
