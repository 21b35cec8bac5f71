"""One line or one callback for each framework people train with; a module imports its framework when it is imported."""
