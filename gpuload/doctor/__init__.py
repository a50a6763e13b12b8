"""Finds faults of a machine, an environment or a packed set, and the stage that limits its speed."""
