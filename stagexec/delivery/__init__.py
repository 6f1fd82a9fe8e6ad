"""What a run promised to deliver, and whether it is there, whole and readable."""
