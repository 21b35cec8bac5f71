"""Named causes: pure functions from recorded telemetry to findings with evidence."""
