"""Clock, ledger, journal and condition: what is kept of a run. Knows no host."""
