"""What every figure rests on: the formats, exponent histograms, and how tensors are measured."""
