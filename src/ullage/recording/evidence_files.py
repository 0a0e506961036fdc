"""The names of what a folder of evidence has in it. No torch, for those who only read."""

from typing import Final

SNAPSHOT: Final = "snapshot.pickle"
ENVIRONMENT: Final = "environment.json"
REPORT: Final = "report.txt"
PAGE: Final = "report.html"
