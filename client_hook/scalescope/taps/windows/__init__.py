"""The facts of a window: how gradients were gathered, scaled, clipped and stepped."""
