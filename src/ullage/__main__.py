"""`python -m ullage`."""

from ullage.cli.app import main

main()
