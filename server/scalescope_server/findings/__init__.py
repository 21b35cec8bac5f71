"""Named causes: pure functions from recorded telemetry to findings with evidence.

``history`` folds the attempted updates into what is known of the loss scale; each detector is a file of its
own that reads that history and says what it means; ``catalogue`` lists them.
"""
