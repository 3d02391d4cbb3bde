"""The driver: submits the run to Ray, prints its log and reports how it ended."""
