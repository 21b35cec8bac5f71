"""A run that is stored, as numpy arrays: for notebooks and scripts."""
