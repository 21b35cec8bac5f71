"""What a training is set up like: formats, flags, state and memory."""
