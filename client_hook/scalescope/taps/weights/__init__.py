"""What an update did to the weights."""
