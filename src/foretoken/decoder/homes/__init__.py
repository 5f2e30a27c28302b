"""Homes of weights: mapped from their files, or copied into huge pages; and the choice between the two."""
