"""Troubles that people reported, each as the smallest loop that has it, and what the server tells of it."""
