"""Journal to runs: everything here is pure, and knows neither the host nor the recorder."""
