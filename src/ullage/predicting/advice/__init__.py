"""What would make a script fit: changes that are tried, not guessed."""
