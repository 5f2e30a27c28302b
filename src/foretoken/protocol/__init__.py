"""What travels between the parts of the loop, and the two protocols that meet there."""
