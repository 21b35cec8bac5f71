"""Optimizers of libraries that scale, check and skip by themselves: heard where an adapter knows what to listen to."""
