"""Print the rows that a query finds in the tables of `ullage explain FILE --sql TABLES`: python ask.py TABLES QUERY."""

import sqlite3
import sys

for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]):
    print(*row)
