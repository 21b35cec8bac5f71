"""What one of several ranks holds and reports, found out without a word to the others."""
