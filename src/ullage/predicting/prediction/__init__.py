"""Running a script on an emulated card, and what follows from it."""
