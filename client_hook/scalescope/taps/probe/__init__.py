"""The fp32 reference probe: one micro-batch in both precisions, and nothing changed by it."""
