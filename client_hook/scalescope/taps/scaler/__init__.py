"""The loss scaler, and those that step what it should."""
