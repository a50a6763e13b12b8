"""How large an image may be."""

MAX_PIXELS = 178_956_970  # Pillow's: 0.5 GB as RGB
