"""Delivery: what alerts have to tell, from the outbox that the judge fills to whoever is to be told."""
