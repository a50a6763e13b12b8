"""`DaliIterator`: its arguments, and the way of a batch to the training loop."""
