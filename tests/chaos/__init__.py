"""Chaos: trainings, a server and a database under faults, and what the trainer wrote itself against the store.

``python -m tests.chaos`` plays rounds at random; ``test_chaos.py`` one short round of each fault.
"""
