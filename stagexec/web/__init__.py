"""What a browser, a scraper or a webhook gets to see of the runs: read-only, and from the same origin."""
