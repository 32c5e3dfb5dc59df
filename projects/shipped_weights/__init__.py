"""What made the weights that ship."""
