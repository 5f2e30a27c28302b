"""One file per drafting method, and the table of those that a user can name (foretoken.drafters.table)."""
