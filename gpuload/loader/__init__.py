"""`DaliIterator`: its arguments, and the path of a batch to the training loop."""
