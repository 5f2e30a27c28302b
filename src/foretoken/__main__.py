"""`python -m foretoken` is the command `foretoken`."""

from foretoken.cli.app import main

main()
