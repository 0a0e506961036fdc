"""A run that is watched from outside: recorded, supervised, shown live, exported; and what is set on this machine."""
