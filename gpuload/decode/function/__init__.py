"""Functions of the user's, called between the decoder and the last step of an image."""
