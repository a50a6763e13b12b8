"""What is wrong with a machine, an environment or a packed set, and what limits its speed."""
