"""The report on packed sets: facts as JSON, and the same as one page with pictures."""
