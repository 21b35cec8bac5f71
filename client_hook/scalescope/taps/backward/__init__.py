"""What only a backward pass tells."""
