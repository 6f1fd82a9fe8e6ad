"""Questions put to runs: what made one faster than another, and more to come."""
